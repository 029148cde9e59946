"""The sections of a run's report, a file each (`flows.report.section`)."""
