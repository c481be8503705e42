"""The actor service: steps environments with the newest weights it has, and delivers their unrolls to replay."""
