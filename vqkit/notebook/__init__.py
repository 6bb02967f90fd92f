"""What a notebook shows of a queue: a dashboard, charts, clips, one line of progress, magics.

Nothing here reads the database or hands out work: it is given snapshots, plain numbers and
the queue's public methods. Each module is loaded when it is first used.
"""
