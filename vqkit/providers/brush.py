"""What the scenes are drawn with: colours, a canvas, soft shapes, sky, weather, a creature.

Lengths are in units of the picture's height, `y` grows downwards, colours are floats from
0 to 1. What moves is a function of `t`, a moment of the loop: 0 to 1, where 1 is 0 again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

__all__ = [
    "COATS",
    "SWAY",
    "TAU",
    "Array",
    "Canvas",
    "Frame",
    "Light",
    "Planes",
    "Stencil",
    "changing",
    "clouds",
    "creature",
    "disc",
    "dots",
    "falling",
    "gradient",
    "land",
    "layers",
    "mirrored",
    "mix",
    "oklch",
    "ridge",
    "scrolled",
    "shine",
    "sin",
    "sky",
    "smooth",
    "spot",
    "stars",
]

Array = NDArray[Any]
Frame = Callable[[float], Array]
Overlay = Callable[[Array, float], None]  # adds to a picture, in place
Light = Literal["night", "dusk", "day"]
Point = tuple[float, float]
Planes = list[tuple["Stencil", bool]]

TAU = math.tau
SWAY = 0.05  # how far the nearest layer moves with the camera
FINE = 3  # drawn shapes are made this much larger, then reduced, for smooth edges

TONES: dict[Light, tuple[float, float, float, float]] = {
    "night": (0.05, 0.46, 0.02, 0.36),
    "dusk": (0.24, 0.86, 0.06, 0.62),
    "day": (0.58, 0.97, 0.20, 0.80),
}
COATS = {  # OKLCH: hue, lightness, chroma
    "fox": (46, 0.66, 0.15), "cat": (68, 0.76, 0.08), "black cat": (280, 0.3, 0.03),
    "wolf": (250, 0.52, 0.03),
}  # fmt: skip
FLAKES = {  # OKLCH: lightness, chroma, hue
    "snow": (0.97, 0.01, 230), "petals": (0.84, 0.1, 0), "leaves": (0.68, 0.16, 55),
    "embers": (0.78, 0.17, 60), "fireflies": (0.9, 0.16, 115),
}  # fmt: skip


# ------------------------------------------------------------------ colour


def oklch(lightness: Any, chroma: Any, hue: Any) -> Array:
    """sRGB of an OKLCH colour (hue in degrees); arrays give arrays with a last axis of 3."""
    angle = np.radians(hue)
    a, b = chroma * np.cos(angle), chroma * np.sin(angle)
    lms = np.stack([
        lightness + 0.3963377774 * a + 0.2158037573 * b,
        lightness - 0.1055613458 * a - 0.0638541728 * b,
        lightness - 0.0894841775 * a - 1.2914855480 * b,
    ], axis=-1)  # fmt: skip
    to_rgb = np.array([
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ])  # fmt: skip
    linear = np.clip(lms**3 @ to_rgb.T, 0, 1)
    rgb = np.where(linear < 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(rgb, np.float32)


def gradient(shadow: float, light: float, chroma: float) -> Array:
    """256 colours from near black to near white, turning from one hue to the other."""
    v = np.linspace(0, 1, 256)
    turn = (light - shadow + 180) % 360 - 180
    fullness = chroma * (0.35 + 0.65 * np.sin(np.pi * np.clip(v * 0.85 + 0.08, 0, 1)) ** 1.2)
    return oklch(0.13 + 0.83 * v, fullness, shadow + turn * v**0.9)


# ------------------------------------------------------------------ the canvas and its tools


def sin(turn: float) -> float:
    """Sine of a number of turns, as Python's float: NumPy's would widen float32 arrays."""
    return math.sin(TAU * turn)


@dataclass(frozen=True, slots=True)
class Canvas:
    """What a scene gets: grid, chances, colours, what the words asked for. Sizes in pixels."""

    x: Array  # one row
    y: Array  # one column
    seconds: float
    rng: np.random.Generator
    ramp: Array
    accent: Array
    light: Light
    weather: str | None
    creature: str | None

    @property
    def width(self) -> int:
        return self.x.size

    @property
    def height(self) -> int:
        return self.y.size

    @property
    def aspect(self) -> float:
        """The picture's width in units of its height."""
        return self.width / self.height

    @property
    def tones(self) -> tuple[float, float, float, float]:
        """Places on the palette: top of the sky, horizon, nearest and farthest ground."""
        return TONES[self.light]

    def tone(self, v: Any) -> Array:
        """The palette's colour at `v`, from 0 (shadow) to 1 (light)."""
        return np.asarray(self.ramp[np.asarray(np.clip(v, 0, 1) * 255, np.intp)])

    def turns(self, hertz: float) -> int:
        """Whole turns a loop that come nearest to `hertz`; at least one."""
        return max(1, round(hertz * self.seconds))

    def pick(self, low: float, high: float) -> float:
        """A number by chance between the two."""
        return float(self.rng.uniform(low, high))


def mix(base: Array, colour: Array, cover: Any) -> Array:
    """`colour` laid over `base` where `cover` (rows, columns) says so."""
    return np.asarray(base + (colour - base) * np.asarray(cover)[..., None])


def smooth(v: Array, low: float, high: float) -> Array:
    """0 below `low`, 1 above `high`, an S between."""
    t = np.clip((v - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def disc(c: Canvas, x: float, y: float, r: float) -> Array:
    """Coverage of a disc with a smooth edge."""
    return np.clip((r - np.hypot(c.x - x, c.y - y)) * c.height + 0.5, 0, 1)


def spot(c: Canvas, x: float, y: float, reach: float) -> tuple[tuple[slice, slice], Array]:
    """The part of a picture within `reach` of a point, and each pixel's distance there."""
    h, w = c.height, c.width
    rows = slice(max(0, int((y - reach) * h)), max(0, int((y + reach) * h) + 2))
    cols = slice(max(0, int((x - reach) * h)), min(w, max(0, int((x + reach) * h) + 2)))
    far = np.sqrt((c.x[:, cols] - float(x)) ** 2 + (c.y[rows] - float(y)) ** 2)
    return (rows, cols), far


def glow(c: Canvas, picture: Array, x: float, y: float, r: float, colour: Array) -> None:
    """Adds a soft light to `picture`, in place."""
    where, far = spot(c, x, y, 2.4 * r)
    picture[where] += np.exp(-((far / r) ** 2))[..., None] * colour


def dots(c: Canvas, x: Array, y: Array, weight: Array) -> Array:
    """Points of light as a picture of one channel (rows, columns, 1)."""
    w, h = c.width, c.height
    px, py = x * h - 0.5, y * h - 0.5
    ix, iy = np.floor(px).astype(np.intp), np.floor(py).astype(np.intp)
    fx, fy = px - ix, py - iy
    total = np.zeros(h * w)
    for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):  # each is spread over four pixels
        part = (fx if dx else 1 - fx) * (fy if dy else 1 - fy) * weight
        inside = (ix >= -dx) & (ix < w - dx) & (iy >= -dy) & (iy < h - dy)
        cell = ((iy + dy) * w + ix + dx)[inside]
        total += np.bincount(cell, weights=part[inside], minlength=h * w)
    picture = total.reshape(h, w).astype(np.float32)
    for axis in (0, 1):  # larger pictures need larger points
        picture = np.sum([np.roll(picture, n, axis) for n in range(max(1, h // 180))], axis=0)
    return picture[..., None]


def clouds(c: Canvas, slope: float, stretch: float = 1.0, blur: float = 0.0) -> Array:
    """A random field, periodic both ways, mean 0 and deviation 1; steeper is smoother."""
    fy = np.fft.fftfreq(c.height, 1 / c.height)[:, None]
    fx = np.fft.rfftfreq(c.width, 1 / c.width)[None] / c.aspect * stretch
    square = fy**2 + fx**2
    shape = (square + 0.7) ** (-slope / 2) * np.exp(-square * blur**2)
    shape[0, 0] = 0
    spectrum = np.fft.rfft2(c.rng.standard_normal((c.height, c.width))) * shape
    noise = np.fft.irfft2(spectrum, (c.height, c.width))
    return np.asarray(noise / noise.std(), np.float32)


def changing(c: Canvas, slope: float, stretch: float = 1.0, blur: float = 0.0) -> Frame:
    """A field that changes without end: it walks a circle between random fields."""
    rest, one, two = (clouds(c, slope, stretch, blur) for _ in range(3))
    walk = min(0.95, 0.25 * c.seconds)  # a short clip takes a small circle, or it would rush
    rest *= math.sqrt(1 - walk * walk)
    return lambda t: rest + walk * sin(t + 0.25) * one + walk * sin(t) * two


def scrolled(tile: Array, shift: float) -> Array:
    """`tile` moved up by `shift` heights, round and round, between whole pixels too."""
    whole, part = divmod(shift * tile.shape[0], 1)
    one, two = np.roll(tile, -int(whole), 0), np.roll(tile, -int(whole) - 1, 0)
    return np.asarray((1 - part) * one + part * two)


class Stencil:
    """Filled shapes, drawn once with room at both sides for the camera to move over them."""

    def __init__(self, c: Canvas) -> None:
        self.margin = int(np.ceil(SWAY * c.height)) + 2
        size = ((c.width + 2 * self.margin) * FINE, c.height * FINE)
        self.image = Image.new("L", size)
        self.draw = ImageDraw.Draw(self.image)
        self.height, self.width = c.height, c.width

    def _at(self, points: Iterable[Point]) -> list[Point]:
        scale = self.height * FINE
        return [(x * scale + self.margin * FINE, y * scale) for x, y in points]

    def shape(self, points: Iterable[Point], fill: int = 255) -> None:
        self.draw.polygon(self._at(points), fill=fill)

    def box(self, x: float, y: float, w: float, h: float, fill: int = 255) -> None:
        """A rectangle, by its upper left corner and size."""
        self.shape([(x, y), (x + w, y), (x + w, y + h), (x, y + h)], fill)

    def blob(self, x: float, y: float, rx: float, ry: float) -> None:
        self.draw.ellipse(self._at([(x - rx, y - ry), (x + rx, y + ry)]), 255)

    def pine(self, x: float, foot: float, tall: float) -> None:
        self.box(x - 0.02 * tall, foot - 0.2 * tall, 0.04 * tall, 0.25 * tall)
        for k in range(5):
            top, half = foot - tall * (1 - 0.17 * k), tall * (0.07 + 0.045 * k)
            self.shape([(x, top), (x + half, top + 0.31 * tall), (x - half, top + 0.31 * tall)])

    def seen(self) -> Frame:
        """The coverage as the camera sees it, for a shift in heights to either side."""
        mask = np.asarray(self.image.reduce(FINE), dtype=np.float32) / 255

        def view(shift: float) -> Array:
            whole, part = divmod(shift * self.height + self.margin, 1)
            i, w = int(whole), self.width
            return (1 - part) * mask[:, i : i + w] + part * mask[:, i + 1 : i + 1 + w]

        return view


def ridge(c: Canvas, base: float, rise: float, rough: float) -> Callable[[Array], Array]:
    """A skyline `y(x)` around `base`; `rough` from 0 (dunes) to 1 (peaks)."""
    k = np.arange(1, 6 + int(26 * rough))
    size = k ** -(2.1 - 0.75 * rough) * c.rng.normal(1, 0.35, k.size)
    phase = c.rng.uniform(0, TAU, k.size)
    pitch = c.pick(1.5, 2.6)

    def line(x: Array) -> Array:
        waves = np.sin(np.multiply.outer(x, k) * pitch + phase) * size
        return np.asarray(base - rise * waves.sum(axis=-1) / 1.6)

    return line


def land(c: Canvas, stencil: Stencil, line: Callable[[Array], Array]) -> None:
    """Fills everything under the skyline, from beyond one edge to beyond the other."""
    x = np.arange(-0.12, c.aspect + 0.12, 0.006)
    stencil.shape([(x[0], 1.1), *zip(x, line(x), strict=True), (x[-1], 1.1)])


# ------------------------------------------------------------------ sky, weather, creatures


def shine(c: Canvas) -> Array:
    """The colour of the sun or moon."""
    warm = {"night": 0.0, "dusk": 0.7, "day": 0.85}[c.light]
    return mix(c.tone(1.0), oklch(0.93, 0.09, 85), warm)


def stars(c: Canvas, number: int, bottom: float = 1.0, dark: Point = (-9, -9)) -> Frame:
    """Stars that twinkle, as `dots`; none close to `dark`, where the moon is."""
    groups = []
    for _ in range(3):
        x, y = c.rng.uniform(0, c.aspect, number), c.rng.uniform(0, bottom, number) ** 1.2
        away = np.hypot(x - dark[0], y - dark[1]) > 0.15
        groups.append(dots(c, x, y, away * c.rng.uniform(0.15, 1.05, number) ** 2.2))
    return lambda t: np.asarray(
        sum(g * (0.67 + 0.33 * sin(t + i / 3)) for i, g in enumerate(groups))
    )


def sky(c: Canvas, horizon: float = 0.72, orb: Point | None = None) -> Frame:
    """Gradient, sun or moon, stars that twinkle, a little cloud."""
    top, low, *_ = c.tones
    still = c.tone(top + (low - top) * np.clip(c.y / horizon, 0, 1) ** 1.25 + 0 * c.x)
    ox, oy = orb or (c.aspect * c.pick(0.18, 0.82), c.pick(0.18, 0.4))
    r = c.pick(0.07, 0.12)
    bright, halo = shine(c), np.hypot(c.x - ox, c.y - oy)
    still += (0.4 * np.exp(-halo / (2.2 * r)))[..., None] * bright * (1 - 0.5 * still)
    face = disc(c, ox, oy, r)
    if c.light == "night" and c.rng.random() < 0.5:  # a crescent
        face = face * (1 - disc(c, ox + 0.5 * r, oy - 0.25 * r, 0.92 * r))
    still = mix(still, bright, face)
    veil = changing(c, 2.1, 3.5, 0.012)
    cloud = c.tone(min(1.0, low + 0.12))
    band = 0.7 * np.exp(-(((c.y - c.pick(0.3, 0.5)) / 0.2) ** 2))
    points = stars(c, 45, horizon, (ox, oy)) if c.light == "night" else None

    def at(t: float) -> Array:
        picture = still if points is None else still + points(t)
        return mix(picture, cloud, smooth(veil(t), 0.1, 2.2) * band)

    return at


def falling(c: Canvas) -> Overlay:
    """The weather the words asked for: flakes, petals, leaves, drops, sparks or fireflies."""
    kind = c.weather
    if kind is None:
        return lambda picture, t: None
    number = {"snow": 110, "rain": 170, "fireflies": 26}.get(kind, 42)
    depth = c.rng.uniform(0.35, 1.0, number) ** 1.4
    x0, y0 = c.rng.uniform(0, c.aspect, number), c.rng.uniform(0, 1, number)
    wobble, phase = c.rng.uniform(0.01, 0.05, number), c.rng.uniform(0, 1, number)
    pace = c.seconds * (1.6 if kind == "rain" else 0.34)
    fall = np.maximum(1, np.round(pace * (0.6 + depth)))
    colour = c.tone(0.9) if kind == "rain" else oklch(*FLAKES[kind])
    bright = kind in ("embers", "fireflies")
    size = 0.010 * (0.5 + depth)

    def add(picture: Array, t: float) -> None:
        if kind == "rain":
            steps, y = np.linspace(0, 0.07, 16), (y0 + fall * t) % 1 * 1.2 - 0.1
            x, y = np.subtract.outer(x0, 0.15 * steps), y[:, None] + np.outer(depth, steps)
            lit = np.repeat(depth * 0.16, steps.size)
            picture += dots(c, x.ravel(), y.ravel(), lit) * colour
            return
        swing = wobble * np.sin(TAU * (t + phase))
        if kind == "fireflies":
            x, y = x0 + 2 * swing, 0.45 + 0.4 * y0 + wobble * np.cos(TAU * (t + phase))
            power = 0.9 * np.maximum(0, np.sin(TAU * (t + phase * 7))) ** 2
        else:
            power = (y0 + (-fall if kind == "embers" else fall) * t) % 1
            x, y = x0 + swing, power * 1.1 - 0.05
        for i in range(number):
            if bright:
                glow(c, picture, x[i], y[i], size[i], colour * power[i])
                glow(c, picture, x[i], y[i], 4 * size[i], colour * power[i] * 0.18)
                continue
            where, far = spot(c, x[i], y[i], 1.6 * size[i])
            flat = 1.0 if kind == "snow" else 0.35 + 0.65 * abs(sin(3 * t + phase[i]))
            cover = np.clip((size[i] * flat - far) * c.height * 0.7 + 0.6, 0, 1)
            picture[where] = mix(picture[where], colour, cover * (0.35 + 0.6 * depth[i]))

    return add


def creature(c: Canvas, *, perch: bool) -> Overlay:
    """A fox, cat or wolf that sits, sways its tail and blinks; nothing if none was named.

    With `perch` it is smaller and brings a mound to sit on.
    """
    x, name = c.aspect * c.pick(0.27, 0.73), c.creature
    if name is None:
        return lambda picture, t: None
    size, ground = 0.38 if perch else 0.42, 0.86
    cat = "cat" in name
    hue, lightness, chroma = COATS[name]
    lightness *= {"night": 0.8, "dusk": 0.92, "day": 1.0}[c.light]
    coat, dark = oklch(lightness, chroma, hue), oklch(0.22, 0.02, hue)
    pale = oklch(lightness + 0.1, chroma / 2, hue) if cat else oklch(lightness + 0.25, 0.025, hue)
    eye = oklch(0.88, 0.17, 110) if name in ("black cat", "wolf") else dark
    unit = max(40, int(size * c.height * 2))  # drawn at twice the size, then reduced
    left, top = int((x - size / 2) * c.height), int((ground - size) * c.height)
    wide, thick = (0.2, 0.037) if cat else (0.23, 0.075)

    soil = c.tone(c.tones[2] + 0.03)
    mound = 1 - np.hypot((c.x - x) / (1.5 * size), (c.y - ground - 0.1) / 0.13)
    mound = np.clip(12 * mound, 0, 1)

    def ink(colour: Array) -> tuple[int, ...]:
        return tuple(int(v * 255) for v in colour)

    def add(picture: Array, t: float) -> None:
        if perch:
            picture[:] = mix(picture, soil, mound)
        glow(c, picture, x, ground - 0.3 * size, 0.5 * size, 0.2 * c.tone(0.8))
        image = Image.new("RGBA", (unit, unit), (*ink(coat), 0))
        draw = ImageDraw.Draw(image)

        def blob(bx: float, by: float, rx: float, ry: float, colour: Array) -> None:
            box = [(bx - rx) * unit, (by - ry) * unit, (bx + rx) * unit, (by + ry) * unit]
            draw.ellipse(box, fill=ink(colour))

        def shape(points: list[Point], colour: Array) -> None:
            draw.polygon([(px * unit, py * unit) for px, py in points], fill=ink(colour))

        bend = 0.05 * sin(t)
        for s in np.linspace(0, 1, 40):  # the tail
            tx = 0.5 + 0.33 * np.sin(1.75 * s) + bend * s * s
            ty = 0.93 - 0.42 * s**1.7
            r = thick * (1.0 if cat else 0.65 + 0.9 * np.sin(np.pi * (s * 0.8 + 0.1)))
            blob(tx, ty, r, r, pale if s > 0.8 else coat)
        blob(0.44, 0.8, 0.2, 0.21, coat)
        shape([(0.28, 0.78), (0.36, 0.42), (0.52, 0.42), (0.6, 0.78)], coat)
        blob(0.44, 0.72, 0.085, 0.17, pale)
        for side in (-1, 1):
            blob(0.44 + 0.075 * side, 0.965, 0.055, 0.035, coat if cat else dark)
            ear = 0.44 + side * wide * 0.68
            shape([(ear - 0.09, 0.29), (ear + 0.03 * side, 0.04), (ear + 0.09, 0.29)], coat)
            shape([(ear - 0.04, 0.26), (ear + 0.025 * side, 0.1), (ear + 0.04, 0.26)], dark)
        blob(0.44, 0.34, wide, 0.155, coat)
        if not cat:
            shape([(0.44 - wide, 0.34), (0.44 + wide, 0.34), (0.44, 0.55)], coat)
            shape([(0.25, 0.4), (0.42, 0.4), (0.44, 0.54)], pale)
            shape([(0.63, 0.4), (0.46, 0.4), (0.44, 0.54)], pale)
            blob(0.44, 0.52, 0.026, 0.02, dark)
        for side in (-1, 1):  # it blinks half-way
            blob(0.44 + side * 0.085, 0.345, 0.026, 0.005 if 0.46 < t < 0.54 else 0.03, eye)
        small = np.asarray(image.resize((unit // 2, unit // 2), Image.Resampling.BOX), np.float32)
        y0, x0 = max(0, top), max(0, left)
        patch = small[y0 - top : c.height - top, x0 - left : c.width - left] / 255
        area = picture[y0 : y0 + patch.shape[0], x0 : x0 + patch.shape[1]]
        area[:] = mix(area, patch[..., :3], patch[..., 3])

    return add


# ------------------------------------------------------------------ pictures put together


def layers(c: Canvas, draw: Callable[[float], Planes], number: int) -> Frame:
    """Sky, then the stencils `draw` gives from the farthest (0) to the nearest (1).

    Mist lies between them; a stencil marked True is covered with snow.
    """
    back, planes = sky(c), []
    _, low, near, far = c.tones
    for depth in np.linspace(0, 1, number):
        v = far + (near - far) * depth**0.75
        dark = v + np.clip((c.y - 0.45 - 0.25 * depth) / 0.5, 0, 1) * (1 - depth) * (low - v) * 0.8
        white = low * (0.72 + 0.3 * depth) + 0.2 * depth - (c.y - 0.55) * 0.35
        for stencil, snowy in draw(float(depth)):
            colour = c.tone(white if snowy else dark)
            planes.append((stencil.seen(), colour, SWAY * (0.1 + 0.9 * depth**1.5)))

    def at(t: float) -> Array:
        picture, sway = back(t), sin(t)
        for seen, colour, reach in planes:
            picture = mix(picture, colour, seen(reach * sway))
        return picture

    return at


def mirrored(c: Canvas, scene: Frame, water: float, darker: float = 0.72) -> Frame:
    """`scene` above the water line, its reflection moving below."""
    shore = int(water * c.height)
    down = np.arange(c.height - shore)
    rows = np.clip(shore - 1 - (down * 1.15).astype(np.intp), 0, None)
    near = down / max(1, down.size)
    speed, cols = c.turns(0.5), np.arange(c.width)
    deep = c.tone(0.12)

    def at(t: float) -> Array:
        picture = scene(t)
        wave = np.sin(26 * near**0.6 - TAU * speed * t) + np.sin(47 * near**0.6 + TAU * speed * t)
        shift = (wave * (0.3 + 2.2 * near) * c.height / 180).astype(np.intp)
        picture[shore:] = picture[rows[:, None], np.clip(cols + shift[:, None], 0, c.width - 1)]
        picture[shore:] *= darker
        picture[shore:] += deep * (0.25 * near[:, None, None])
        picture[shore : shore + max(1, c.height // 180)] += 0.12
        return picture

    return at
