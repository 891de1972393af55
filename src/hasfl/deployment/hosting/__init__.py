"""The processes of one host: started, watched, started again, and ended with whoever started them."""
