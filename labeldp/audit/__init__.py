"""Is a promise kept? Lower bounds on ε from what was released, or from what a training gives away."""
