"""Exports of the records of a run to other programs: TensorBoard, MLflow, trace events for Perfetto."""

RECORD_FORMATS = ("tensorboard", "mlflow", "trace")
