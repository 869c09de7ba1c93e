"""The jobs: functions `job(spark, ...) -> Report`, one module each."""
