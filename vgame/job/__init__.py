"""Jobs: the job file, the bundle that all parties hold, the smallest safe terms."""
