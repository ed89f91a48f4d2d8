"""Run on the engines that people already have, where one machine is not enough, and exactly as private.

    spark          tables: private responses and the one-shot moment over partitions (extra `labeldp[spark]`)
    distributed    training: gradients, batches and features over the ranks of torchrun

Nothing is imported here: an engine is wanted by those who have it.
"""
