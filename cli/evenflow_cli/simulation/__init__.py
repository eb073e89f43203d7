"""`evenflow simulate`: a pool and a trace under several policies."""
