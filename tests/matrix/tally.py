"""Trains for three steps and walks over the storages of everything that the script holds: the numbers that a trace must show."""

import torch


def storages(tensors):
    """Bytes of the distinct storages on the device under these tensors."""
    found = {}
    for tensor in tensors:
        tensor = getattr(tensor, "_local_tensor", tensor)  # of a distributed tensor, what lies here
        if tensor is None or not tensor.is_cuda:
            continue
        parts = (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)
        for part in parts:
            storage = part.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


class Tally:
    """Largest sums over the run. Call look() wherever gradients or states are all there."""

    def __init__(self, models, optimizers=(), more_parameters=()):
        self.models, self.optimizers, self.more_parameters = models, optimizers, more_parameters
        self.parameter = self.gradient = self.optimizer_state = 0

    def look(self):
        parameters = [p for model in self.models for p in model.parameters()]
        held = storages([*parameters, *self.more_parameters])
        gradients = storages(p.grad for p in parameters)
        states = storages(tensors_in([state for o in self.optimizers for state in o.state.values()]))
        # A flattened parameter's gradient may lie in the same storage as others; each storage counts once.
        states = {k: v for k, v in states.items() if k not in held}
        self.parameter = max(self.parameter, sum(held.values()))
        self.gradient = max(self.gradient, sum(gradients.values()))
        self.optimizer_state = max(self.optimizer_state, sum(states.values()))

    def to_json(self):
        return {name: getattr(self, name) for name in ("parameter", "gradient", "optimizer_state")}


def train(model, optimizer, batch, loss_of=lambda output: output.loss, *, steps=3, autocast=None, scaler=None, clip=None, accumulate=1,
          after_step=None, set_to_none=True, called=None, more_models=(), more_parameters=()):
    """An ordinary loop. `batch()` makes the arguments of the model: a dictionary or a tuple. `called` is what to call instead of the model
    (a compiled or wrapped one)."""
    tally = Tally([model, *more_models], [optimizer], more_parameters)
    called = called or model
    for _ in range(steps):
        for _ in range(accumulate):
            arguments = batch()
            with torch.autocast("cuda", autocast or torch.bfloat16, enabled=autocast is not None):
                output = called(**arguments) if isinstance(arguments, dict) else called(*arguments)
                loss = loss_of(output)
            (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(optimizer)
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        tally.look()
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if after_step:
            after_step()
        tally.look()
        optimizer.zero_grad(set_to_none=set_to_none)
    return tally
