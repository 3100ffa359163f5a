"""Tasks in the formats of others, out and in: one file a format.

    harbor.py     a folder per task with images, verifier and solution (Harbor 0.26)
    swebench.py   rows of SWE-bench: base commit, gold patch, test patch, ids
    swesmith.py   rows of SWE-smith: the patch that breaks, ids
    rows.py       such rows as JSON Lines or parquet files, and what makes an id of a test believable
    transfer.py   a whole folder of tasks out, a file or folder of others' tasks in

What is read becomes a Task in a TaskStore and is graded by grade/, like every other.
"""
