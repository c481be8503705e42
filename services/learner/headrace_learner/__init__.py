"""The learner service: owns the run, the parameters, the updates, the weight versions and the checkpoints."""
