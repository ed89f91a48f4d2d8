"""One published method per file: plain functions, each readable on one page.

A recipe takes a model, public inputs on the model's device and a vault, asks the vault, and trains on the answers:
`train(model, inputs, vault, *, epsilon, fit, ...) -> nn.Module`. The certificate is the vault's.

`fit` is the training algorithm: `labeldp.learning.train.fit` with its settings bound,
`functools.partial(fit, epochs=40, ...)`. Privacy settings and training settings so never share an argument list.
"""
