"""A U-Net that knows it is on a sphere: longitudes are a circle, and cells count by their area."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name that everybody knows it by


@dataclass(frozen=True)
class Shape:
    """What a model is made for: its channels by name, and where it is.

    Attributes
    ----------
    inputs : tuple of str
        Channels of the inputs as the loader names them: ``t2m@-6h``, ``z500@0h``; statics such as ``lsm`` without lead.
    relative : bool
        Whether the model sees departures from the mean of its history: for climates that drift away from all that was
        seen in training.
    """

    inputs: tuple[str, ...]
    latitudes: tuple[float, ...]
    circular: bool
    relative: bool
    width: int
    depth: int = 2

    @property
    def history(self) -> list[str]:
        """Leads of the inputs, from the past to the present."""
        return list(dict.fromkeys(name.rpartition("@")[2] for name in self.inputs if "@" in name))

    @property
    def state(self) -> list[str]:
        """Channels that are forecast, without leads."""
        now = f"@{self.history[-1]}"
        return [name.removesuffix(now) for name in self.inputs if name.endswith(now)]

    @property
    def statics(self) -> list[int]:
        """Where the channels without leads are among the inputs."""
        return [k for k, name in enumerate(self.inputs) if "@" not in name]

    def at(self, lead: str, channels: Sequence[str] = ()) -> list[int]:
        """Where the state at one lead is among some channels; among the inputs by default."""
        known = list(channels or self.inputs)
        return [known.index(f"{name}@{lead}") for name in self.state]


class Conv(nn.Module):
    """A 3 x 3 convolution that goes round the globe, and repeats the last row at the poles."""

    def __init__(self, n_in: int, n_out: int, circular: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, 3)
        self.around = "circular" if circular else "replicate"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keep the grid."""
        x = F.pad(F.pad(x, (1, 1, 0, 0), mode=self.around), (0, 0, 1, 1), mode="replicate")
        return self.conv(x)


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, n_in: int, n_out: int, circular: bool) -> None:
        super().__init__()
        self.first, self.second = Conv(n_in, n_out, circular), Conv(n_out, n_out, circular)
        self.around = nn.Conv2d(n_in, n_out, 1) if n_in != n_out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keep the grid."""
        return self.around(x) + self.second(F.gelu(self.first(F.gelu(x))))


class UNet(nn.Module):
    """From channels to channels, seen at several scales."""

    def __init__(self, n_in: int, n_out: int, width: int, depth: int, circular: bool) -> None:
        super().__init__()
        widths = [width * 2**k for k in range(depth + 1)]
        self.stem = Conv(n_in, width, circular)
        self.down = nn.ModuleList(Block(widths[max(k - 1, 0)], widths[k], circular) for k in range(depth + 1))
        self.up = nn.ModuleList(Block(widths[k] + widths[k + 1], widths[k], circular) for k in reversed(range(depth)))
        self.head = Conv(width, n_out, circular)
        # Nothing is added at first: training starts from persistence.
        nn.init.zeros_(self.head.conv.weight)
        nn.init.zeros_(self.head.conv.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keep the grid."""
        x, seen = self.stem(x), []
        for k, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2, ceil_mode=True) if k else x)
            seen.append(x)
        for block, finer in zip(self.up, reversed(seen[:-1]), strict=True):
            x = block(torch.cat([finer, F.interpolate(x, size=finer.shape[-2:], mode="nearest")], dim=1))
        return self.head(x)


class Forecaster(nn.Module):
    """Steps forward from a history of states, and again from what it forecast.

    Works on normalised channels, named by ``shape``. One step adds to the present what the U-Net says, in units of the
    changes that are usual in one step.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.unet = UNet(len(shape.inputs) + 1, len(shape.state), shape.width, shape.depth, shape.circular)
        phi = torch.deg2rad(torch.tensor(shape.latitudes, dtype=torch.float32))
        area = torch.cos(phi)[:, None]
        self.register_buffer("area", area / area.mean(), persistent=False)
        self.register_buffer("sine", torch.sin(phi)[:, None], persistent=False)
        self.register_buffer("change", torch.ones(len(shape.state), 1, 1))
        self.order = [k for lead in shape.history for k in shape.at(lead)]

    def forward(self, inputs: torch.Tensor, steps: int) -> torch.Tensor:
        """Forecast ``(batch, steps, channel, lat, lon)`` from ``inputs``, ``(batch, channel, lat, lon)``."""
        n = len(self.shape.state)
        history, statics = inputs[:, self.order], inputs[:, self.shape.statics]
        place = self.sine.expand(len(inputs), 1, *inputs.shape[-2:])
        found = []
        for _ in range(steps):
            now = history[:, -n:]
            seen = self.departures(history) if self.shape.relative else history
            now = now + self.change * self.unet(torch.cat([seen, statics, place], dim=1))
            history = torch.cat([history[:, n:], now], dim=1)
            found.append(now)
        return torch.stack(found, dim=1)

    def departures(self, history: torch.Tensor) -> torch.Tensor:
        """What is left of a history without its mean at every place."""
        states = history.unflatten(1, (-1, len(self.shape.state)))
        return (states - states.mean(dim=1, keepdim=True)).flatten(1, 2)

    def by_lead(self, values: torch.Tensor, channels: Sequence[str]) -> torch.Tensor:
        """Targets ``(batch, channel, lat, lon)`` with an axis of leads: ``(batch, lead, channel, lat, lon)``."""
        leads = dict.fromkeys(name.rpartition("@")[2] for name in channels)
        return torch.stack([values[:, self.shape.at(lead, channels)] for lead in leads], dim=1)

    def loss(self, forecast: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Mean squared error by area, every channel in units of its usual change, over all steps of a rollout."""
        return (((forecast - truth) / self.change) ** 2 * self.area).mean()

    @torch.no_grad()
    def learn_change(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Measure on some inputs, and targets by lead, how much channels change in one step."""
        now = self.shape.at(self.shape.history[-1])
        squares = [((truth[:, 0] - inputs[:, now]) ** 2).mean(dim=(0, 2, 3)) for inputs, truth in pairs]
        self.change.copy_(torch.stack(squares).mean(dim=0).sqrt()[:, None, None])

    def adopt(self, weights: dict[str, torch.Tensor]) -> tuple[int, int]:
        """Start from the weights of another model as far as they fit; return how many do, and of how many.

        The inner layers fit whatever the channels are: this is how a model goes from one data set to another.
        """
        own = self.state_dict()
        fitting = {k: w for k, w in weights.items() if k.startswith("unet") and own[k].shape == w.shape}
        fitting = {k: w for k, w in fitting.items() if not k.startswith("unet.head")}
        self.load_state_dict(fitting, strict=False)
        return len(fitting), len(own)
