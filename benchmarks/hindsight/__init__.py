"""How good are plans, compared with the best fixed plan, which is known only after training all of them?

    python -m benchmarks.hindsight SETTING --what grid     # train every fixed plan of a grid
    python -m benchmarks.hindsight SETTING --what plans    # train with plans that are made during training
    python -m benchmarks.hindsight.report                  # write tables and pictures of the results

`settings.py` lists the settings and their trainings, `training.py` trains, `runs.py` reads the results back,
`laws.py` fits the law of rounds, and `report` writes tables and pictures. The folder `results` holds the
results, a file for each setting, kind of training and seed.
"""
