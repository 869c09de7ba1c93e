"""What the tasks of each job run; the job itself is the module of the same name one folder up."""
