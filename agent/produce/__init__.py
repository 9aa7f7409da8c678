"""The write path, a file a step: receive, validate, buffer, upload, commit, acknowledge."""
