"""What tasks run for a fleet: reading manifests, and the entries of segments and stores."""
