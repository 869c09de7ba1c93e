"""Starting Spark: Java, settings, shipped code, the lag of queries. Runs on the driver."""
