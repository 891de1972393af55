"""What is known of trainings from their records: measures that compare runs, figures, and pages."""
