"""Where rows live when one process is not enough: Spark partitions, and the ranks of torchrun."""
