"""The jobs: functions `job(spark, ...) -> Report`, one per module.

>>> from streamkeep.pipeline.jobs.to_lake import to_lake
>>> to_lake(spark, "orders.store", "orders.lake").entries
"""
