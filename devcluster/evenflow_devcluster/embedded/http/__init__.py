"""The API over HTTPS: requests in, answers and watches out."""
