"""The processes of one host: started, watched, started again, and ended with the process that started them."""
