"""Where assignments are trained: in this process, in processes of this machine, or on a Ray cluster."""
