"""What the processes of tasks print, on its way into log files of bounded size."""
