"""The records of a run in the formats of other programs: TensorBoard, MLflow, trace events for Perfetto."""

RECORD_FORMATS = ("tensorboard", "mlflow", "trace")
