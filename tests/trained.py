"""What tests of trainings share: a run that is stopped on its way, as by a kill, and the weights that came out."""

import torch


class StopHereError(Exception):
    pass


def stop_at(**place):
    """A report that ends the run where its progress says so, by an exception: `stop_at(epoch=3)`."""

    def report(progress):
        if all(getattr(progress, name) == value for name, value in place.items()):
            raise StopHereError

    return report


def weights(model):
    """Parameters and buffers in one row."""
    return torch.cat([value.flatten().float() for value in model.state_dict().values()])
