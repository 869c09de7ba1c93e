"""The data pipeline on Spark; most of it is tested without a JVM."""
