"""Where handlers run: as coroutines, on threads, in worker processes."""
