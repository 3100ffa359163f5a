"""What a person sees of a run: the live terminal view, the end table and report.html."""
