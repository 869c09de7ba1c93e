"""The jobs: functions `job(spark, ...) -> Report`, one per module."""
