"""Tables of scores, views of analyses and the HTML report, computed only from run folders and Results.

No module here imports torch or loads an encoder.
"""
