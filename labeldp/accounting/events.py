"""What one look at the labels costs, under the one neighbouring relation of this library.

Two data sets are neighbours when **one label is replaced**; features, the number of rows and their order
are public. Every event below describes the worst pair of output laws (P, Q) over such neighbours. Since a
replacement can be undone by a replacement, every pair is symmetric: what P can do to Q, Q can do to P.

Parameters, defined once for the whole library. A row contributes a vector g(x, y) to a released sum.

``noise_std`` (s)
    Standard deviation of the noise on each coordinate of the *sum* (not of the mean).
``radius`` (R)
    Largest norm of one row's contribution: |g(x, y)| ≤ R. The clipping norm C.
``diameter`` (D)
    Furthest one row's contribution moves when its label is replaced: |g(x, y) − g(x, y′)| ≤ D ≤ 2R.
    With norm clipping alone D = 2C.
``rate`` (q)
    Probability that a given row is in the batch. The batch is drawn by the vault and never shown.
``epsilon`` (ε)
    Largest log-ratio of two probabilities of one answer.

A *noise multiplier* is s / C everywhere (the command line included), never s / (2C).
"""
