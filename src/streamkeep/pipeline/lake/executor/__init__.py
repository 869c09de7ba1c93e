"""What tasks do with the files of a lake."""
