"""One published method per file: plain functions, each readable on one page.

A recipe takes a model, public inputs on the model's device and a vault, queries the vault, and trains on what it
releases: `train(model, inputs, vault, *, epsilon, fit, ...) -> nn.Module`. The certificate is the vault's. `fit` is the
training algorithm, `labeldp.learning.train.fit` with its settings bound (`functools.partial(fit, epochs=40, ...)`):
privacy settings and training settings so never share an argument list.

How a recipe runs, whoever asks for it:

    `catalogue`   its entry says which function it is, its default settings and what it is worth (`worth`)
    `job`         `run` supplies the function's arguments by their names
    `arguments`   `checked`, on every recipe, refuses what is wrong before its first statement
    `budget`      splits ε between its queries, or turns it into noise and steps
    `kept`        charges, draws and keeps each release; `prepaid` does so for gradients
"""
