"""What is measured, against whom, and the report. Imports anything of ours; nothing of ours imports it."""
