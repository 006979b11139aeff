"""What has nothing to do with training: threads, compiled loops, whole files, progress."""
