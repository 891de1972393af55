"""What is installed here, what this machine has, and what is missing for which part of hasfl."""
