"""The pool of tasks: what is known of each, which come next, which are to be made. No torch, no import of what makes tasks."""
