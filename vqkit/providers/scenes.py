"""The pictures behind the `local` provider: small animated scenes out of words and a seed.

`painter` chooses a palette and a scene and returns a function from a moment of the loop
(0 to 1, where 1 is 0 again) to a frame. Lengths are in units of the picture's height, `y`
grows downwards, colours are floats from 0 to 1. Whatever moves, moves by whole turns a
loop, so the last frame leads into the first. Imported only by a worker that renders:
numpy and Pillow are loaded here.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

__all__ = ["SCENES", "painter"]

Array = NDArray[Any]
Frame = Callable[[float], Array]
Light = Literal["night", "dusk", "day"]
K = TypeVar("K", bound=str)
Point = tuple[float, float]
Draw = Callable[[float], list[tuple["Stencil", bool]]]

TAU = math.tau
SWAY = 0.05  # how far the nearest layer moves with the camera
FINE = 3  # drawn shapes are made this much larger, then reduced, for smooth edges

# (shadow, light) in OKLCH degrees, blended the short way round: each pair was looked at.
HUES = [
    (268, 55), (290, 20), (245, 195), (205, 110), (330, 65), (165, 100), (258, 350), (15, 80),
    (300, 210), (230, 75), (350, 40), (280, 340),
]  # fmt: skip
COLOURS = {
    "red": 25, "crimson": 18, "scarlet": 28, "coral": 35, "orange": 55, "amber": 70, "copper": 50,
    "gold": 85, "golden": 85, "yellow": 100, "lime": 125, "green": 148, "emerald": 160,
    "jade": 165, "teal": 190, "turquoise": 195, "cyan": 205, "azure": 235, "blue": 255,
    "navy": 262, "indigo": 275, "violet": 298, "purple": 308, "magenta": 330, "pink": 355,
    "rose": 8, "autumn": 48, "blossom": 352, "desert": 65, "lantern": 55, "lanterns": 55,
    "lava": 30, "sand": 75,
}  # fmt: skip
LIGHTS: dict[Light, str] = {
    "night": "night midnight moon moonlit moonlight star starry stars dark neon aurora firefly",
    "dusk": "dusk dawn sunset sunrise evening morning twilight golden autumn",
    "day": "day noon sunny bright summer spring sunshine light",
}
COATS = {
    "fox": (46, 0.66, 0.15), "cat": (68, 0.76, 0.08), "black cat": (280, 0.3, 0.03),
    "wolf": (250, 0.52, 0.03),
}  # fmt: skip
WEATHER = {
    "snow": "snow snowy snowfall winter blizzard ice icy frost arctic",
    "petals": "petal petals blossom blossoms cherry spring sakura flower flowers garden",
    "leaves": "leaf leaves autumn fall october",
    "rain": "rain rainy storm monsoon",
    "embers": "ember embers spark sparks lava volcano",
    "fireflies": "firefly fireflies magic fairy enchanted meadow",
}
FLAKES = {  # OKLCH
    "snow": (0.97, 0.01, 230), "petals": (0.84, 0.1, 0), "leaves": (0.68, 0.16, 55),
    "embers": (0.78, 0.17, 60), "fireflies": (0.9, 0.16, 115),
}  # fmt: skip
PLACES = {
    "hills": "hill hills mountain mountains valley desert dune dunes field meadow road canyon "
    "landscape sky cloud clouds sunset sunrise dawn volcano garden cherry blossom",
    "sea": "sea ocean wave waves beach ship boat sail sailing whale coast island lake shore fish",
    "forest": "forest wood woods tree trees jungle leaf leaves autumn deer owl fairy",
    "city": "city town street skyline tokyo paris york neon building rooftop car train robot rain",
    "snow": "snow snowy winter snowfall ice frost arctic blizzard cabin christmas",
    "fire": "fire flame flames campfire ember embers burning lava candle phoenix dragon",
    "aurora": "aurora borealis northern iceland norway",
    "cosmos": "space cosmos planet planets galaxy nebula astronaut rocket moon mars star stars",
    "stream": "wind flow stream river hair smoke silk music dance dream electric",
    "lights": "bokeh lights lantern lanterns party festival bubbles glow glowing",
    "paper": "paper abstract origami layers topographic marble liquid ink paint pattern",
}
HOMES = ("hills", "forest", "snow", "aurora", "city")  # where a creature may sit
HOME_HUES = {
    "sea": [(250, 200), (265, 40), (240, 85)],
    "forest": [(170, 105), (190, 130), (150, 80)],
    "snow": [(262, 225), (275, 340), (255, 60)],
    "fire": [(20, 85)],
    "aurora": [(265, 165), (280, 170), (250, 190)],
    "cosmos": [(285, 350), (265, 210), (300, 40)],
    "city": [(275, 345), (262, 45), (250, 200)],
}


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
    """What a scene gets: the grid, the chances, the colours and what the words asked for."""

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
        """In pixels."""
        return self.x.size

    @property
    def height(self) -> int:
        """In pixels."""
        return self.y.size

    @property
    def aspect(self) -> float:
        """The picture's width in units of its height."""
        return self.width / self.height

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
    """Points of light as a picture of one channel; each is spread over four pixels."""
    w, h = c.width, c.height
    px, py = x * h - 0.5, y * h - 0.5
    ix, iy = np.floor(px).astype(np.intp), np.floor(py).astype(np.intp)
    fx, fy = px - ix, py - iy
    total = np.zeros(h * w)
    for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
        part = (fx if dx else 1 - fx) * (fy if dy else 1 - fy) * weight
        inside = (ix >= -dx) & (ix < w - dx) & (iy >= -dy) & (iy < h - dy)
        cell = ((iy + dy) * w + ix + dx)[inside]
        total += np.bincount(cell, weights=part[inside], minlength=h * w)
    picture = total.reshape(h, w).astype(np.float32)
    for axis in (0, 1):  # larger pictures need larger points
        picture = np.sum([np.roll(picture, n, axis) for n in range(max(1, h // 180))], axis=0)
    return picture


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
    """Shapes drawn once, with room at both sides for the camera to move over them."""

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
        """A filled polygon."""
        self.draw.polygon(self._at(points), fill=fill)

    def box(self, x: float, y: float, w: float, h: float, fill: int = 255) -> None:
        """A filled rectangle, by its upper left corner and size."""
        self.shape([(x, y), (x + w, y), (x + w, y + h), (x, y + h)], fill)

    def blob(self, x: float, y: float, rx: float, ry: float) -> None:
        """A filled ellipse."""
        self.draw.ellipse(self._at([(x - rx, y - ry), (x + rx, y + ry)]), 255)

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
        total: Array = base - rise * waves.sum(axis=-1) / 1.6
        return total

    return line


def land(c: Canvas, stencil: Stencil, line: Callable[[Array], Array]) -> None:
    """Fills everything under the skyline, from beyond one edge to beyond the other."""
    x = np.arange(-0.12, c.aspect + 0.12, 0.006)
    stencil.shape([(x[0], 1.1), *zip(x, line(x), strict=True), (x[-1], 1.1)])


# ------------------------------------------------------------------ sky, weather, creatures

# top of the sky, horizon, nearest ground, farthest ground: places on the palette
TONES: dict[Light, tuple[float, float, float, float]] = {
    "night": (0.05, 0.46, 0.02, 0.36),
    "dusk": (0.24, 0.86, 0.06, 0.62),
    "day": (0.58, 0.97, 0.20, 0.80),
}


def shine(c: Canvas) -> Array:
    """The colour of the sun or moon."""
    warm = {"night": 0.0, "dusk": 0.7, "day": 0.85}[c.light]
    return mix(c.tone(1.0), oklch(0.93, 0.09, 85), warm)


def stars(c: Canvas, number: int, bottom: float = 1.0, dark: Point = (-9, -9)) -> Frame:
    """Stars that twinkle, one channel; none close to `dark`, where the moon is."""
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
    top, low, *_ = TONES[c.light]
    v = top + (low - top) * np.clip(c.y / horizon, 0, 1) ** 1.25 + 0 * c.x
    still = c.tone(v)
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
        picture = still if points is None else still + points(t)[..., None]
        return mix(picture, cloud, smooth(veil(t), 0.1, 2.2) * band)

    return at


def falling(c: Canvas) -> Callable[[Array, float], None]:
    """What the weather adds to a picture, in place: flakes, petals, drops, sparks, fireflies."""
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
            picture += dots(c, x.ravel(), y.ravel(), lit)[..., None] * colour
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


def creature(
    c: Canvas, *, size: float = 0.42, ground: float = 0.86, perch: bool = False
) -> Callable[[Array, float], Array]:
    """A fox, cat or wolf that sits, sways its tail and blinks; nothing if none was named.

    With `perch` it brings a mound to sit on.
    """
    x, name = c.aspect * c.pick(0.27, 0.73), c.creature
    if name is None:
        return lambda picture, t: picture
    cat = "cat" in name
    hue, lightness, chroma = COATS[name]
    lightness *= {"night": 0.8, "dusk": 0.92, "day": 1.0}[c.light]
    coat, dark = oklch(lightness, chroma, hue), oklch(0.22, 0.02, hue)
    pale = oklch(lightness + 0.1, chroma / 2, hue) if cat else oklch(lightness + 0.25, 0.025, hue)
    eye = oklch(0.88, 0.17, 110) if name in ("black cat", "wolf") else dark
    unit = max(40, int(size * c.height * 2))  # drawn at twice the size, then reduced
    left, top = int((x - size / 2) * c.height), int((ground - size) * c.height)
    wide, thick = (0.2, 0.037) if cat else (0.23, 0.075)

    soil = c.tone(TONES[c.light][2] + 0.03)
    mound = 1 - np.hypot((c.x - x) / (1.5 * size), (c.y - ground - 0.1) / 0.13)
    mound = np.clip(12 * mound, 0, 1)

    def ink(colour: Array) -> tuple[int, ...]:
        return tuple(int(v * 255) for v in colour)

    def add(picture: Array, t: float) -> Array:
        picture = mix(picture, soil, mound) if perch else picture
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
        return picture

    return add


# ------------------------------------------------------------------ scenes with a horizon


def _layers(c: Canvas, draw: Draw, number: int) -> Frame:
    """Sky, then the stencils `draw` gives from the farthest (0) to the nearest (1).

    Mist lies between them; a stencil marked True is covered with snow.
    """
    back, planes = sky(c), []
    _, low, near, far = TONES[c.light]
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


def hills(c: Canvas) -> Frame:
    """Ridges one behind the other, from peaks to dunes."""
    rough = c.pick(0.0, 0.9)

    def draw(depth: float) -> list[tuple[Stencil, bool]]:
        s, rise = Stencil(c), 0.15 - 0.08 * depth
        land(c, s, ridge(c, 0.5 + 0.34 * depth, rise, rough * (1 - 0.75 * depth)))
        return [(s, False)]

    return _layers(c, draw, 6)


def _pine(s: Stencil, x: float, foot: float, tall: float) -> None:
    s.box(x - 0.02 * tall, foot - 0.2 * tall, 0.04 * tall, 0.25 * tall)
    for k in range(5):
        top, half = foot - tall * (1 - 0.17 * k), tall * (0.07 + 0.045 * k)
        s.shape([(x, top), (x + half, top + 0.31 * tall), (x - half, top + 0.31 * tall)])


def snow(c: Canvas) -> Frame:
    """Pines on soft white slopes."""

    def draw(depth: float) -> list[tuple[Stencil, bool]]:
        line = ridge(c, 0.56 + 0.28 * depth, 0.07, 0.12)
        trees, slope = Stencil(c), Stencil(c)
        if depth < 1 or c.creature is None:
            for x in c.rng.uniform(-0.1, c.aspect + 0.1, int(26 - 21 * depth)):
                tall = (0.1 + 0.3 * depth) * c.pick(0.7, 1.25)
                _pine(trees, x, float(line(np.array(x))) + 0.01, tall)
        land(c, slope, line)
        return [(trees, False), (slope, True)]

    return _layers(c, draw, 4)


def forest(c: Canvas) -> Frame:
    """Trunks in the mist, with light between them."""
    leafy = c.weather == "leaves" or c.rng.random() < 0.5

    def draw(depth: float) -> list[tuple[Stencil, bool]]:
        s, line = Stencil(c), ridge(c, 0.72 + 0.14 * depth, 0.03, 0.3)
        for x in np.linspace(-0.1, c.aspect + 0.1, int(22 - 15 * depth)):
            x += c.pick(-0.07, 0.07) * (1 + depth)
            foot = float(line(np.array(x)))
            if not leafy:
                _pine(s, x, foot + 0.02, (0.35 + 0.5 * depth) * c.pick(0.75, 1.2))
                continue
            half, lean = (0.008 + 0.028 * depth) * c.pick(0.7, 1.3), c.pick(-0.05, 0.05)
            s.shape(
                [(x - 2 * half, foot + 0.03), (x - half, foot - 0.1), (x + lean - half / 2, -0.05),
                 (x + lean + half / 2, -0.05), (x + half, foot - 0.1), (x + 2 * half, foot + 0.03)]
            )  # fmt: skip
            for _ in range(7):
                r = c.pick(0.03, 0.09) * (0.6 + depth)
                s.blob(x + lean + c.pick(-0.16, 0.16), c.pick(-0.06, 0.13), r * 1.3, r)
        land(c, s, line)
        return [(s, False)]

    return _layers(c, draw, 5)


def _mirrored(c: Canvas, scene: Frame, water: float, darker: float = 0.72) -> Frame:
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


def city(c: Canvas) -> Frame:
    """A skyline with its lights on, above still water."""
    back, warm, planes = sky(c, 0.7), oklch(0.86, 0.12, 80), []
    _, low, near, far = TONES[c.light]
    for depth in (0.0, 0.5, 1.0):
        s, lamps = Stencil(c), [Stencil(c), Stencil(c)]
        x = -0.15
        while x < c.aspect + 0.1:
            w = c.pick(0.07, 0.15) * (0.7 + 0.5 * depth)
            tall = c.pick(0.12, 0.5) * (1.05 - 0.45 * depth) + 0.06 * (1 - depth)
            s.box(x, 0.76 - tall, w, 0.5)
            style = c.rng.random()
            if style < 0.2:
                s.box(x + w * 0.46, 0.76 - tall - 0.09, w * 0.08, 0.1)
            elif style < 0.4:
                s.shape([(x, 0.76 - tall), (x + w / 2, 0.71 - tall), (x + w, 0.76 - tall)])
            elif style < 0.55:
                s.box(x + w * 0.2, 0.73 - tall, w * 0.6, 0.04)
            cell = 0.021 + 0.006 * depth
            for gx in np.arange(x + cell * 0.6, x + w - cell, cell):
                for gy in np.arange(0.78 - tall, 0.74, cell * 1.25):
                    if c.rng.random() < 0.34:
                        lamp = lamps[int(c.rng.random() < 0.25)]
                        lamp.box(gx, gy, cell * 0.5, cell * 0.62, int(c.pick(90, 255)))
            x += w + c.pick(-0.02, 0.03)
        s.box(-0.2, 0.725, c.aspect + 0.4, 0.1)
        v = far + (near - far) * depth
        shade = c.tone(v + np.clip((c.y - 0.5) / 0.5, 0, 1) * (1 - depth) * (low - v) * 0.5)
        seen = s.seen(), [lamp.seen() for lamp in lamps]
        planes.append((*seen, shade, 0.4 + 0.5 * depth, SWAY * (0.1 + 0.5 * depth)))

    def above(t: float) -> Array:
        picture, sway = back(t), sin(t)
        for seen, lamps, shade, lit, reach in planes:
            picture = mix(picture, shade, seen(reach * sway))
            for power, lamp in zip((1.0, 0.5 + 0.5 * sin(t)), lamps, strict=True):
                picture = mix(picture, warm, lamp(reach * sway) * lit * power)
        return picture

    return _mirrored(c, above, 0.74)


def sea(c: Canvas) -> Frame:
    """Waves to the horizon, the sun's or moon's road on them, and a sail."""
    horizon = c.pick(0.42, 0.52)
    orb = (c.aspect * c.pick(0.25, 0.75), horizon - c.pick(0.02, 0.2))
    back = sky(c, horizon, orb)
    _, low, near, far = TONES[c.light]
    down = np.clip(c.y - horizon, 1e-4, 1)
    z = 0.12 / (down + 0.025)  # distance over the water
    water = np.clip((c.y - horizon) * c.height, 0, 1) + 0 * c.x
    n = 11
    kz = (np.geomspace(14, 110, n) * c.rng.uniform(0.8, 1.25, n)).tolist()
    phase, slant = c.rng.uniform(0, TAU, n).tolist(), c.rng.normal(0, 0.22, n).tolist()
    turns = c.rng.integers(1, c.turns(0.9) + 1, n).tolist()
    across = c.x - c.aspect / 2
    paths = [z * k * (1 + a * across) + p for k, a, p in zip(kz, slant, phase, strict=True)]
    steep = [k * 0.12 / (down + 0.025) ** 2 / c.height for k in kz]  # radians a pixel
    size = [0.42 * (14 / k) ** 0.35 / (1 + s * s) for k, s in zip(kz, steep, strict=True)]
    calm = np.clip(down * 5.5, 0.06, 1)
    base = far * 0.9 + (near + 0.1 - far * 0.9) * np.clip(down / (1 - horizon), 0, 1) ** 0.7
    road = np.exp(-(((c.x - orb[0]) / (0.05 + 0.5 * down)) ** 2))
    bright, sail = shine(c), Stencil(c)
    bx, by = c.aspect * c.pick(0.2, 0.8), horizon + 0.07
    for part in (
        [(-0.055, 0), (0.06, 0), (0.04, 0.019), (-0.04, 0.019)],
        [(-0.002, -0.007), (-0.002, -0.12), (0.055, -0.007)],
        [(-0.009, -0.007), (-0.009, -0.11), (-0.046, -0.007)],
    ):
        sail.shape([(bx + x, by + y) for x, y in part])
    boat = sail.seen()

    def at(t: float) -> Array:
        wave = sum(a * np.sin(p - TAU * s * t) for a, p, s in zip(size, paths, turns, strict=True))
        ocean = c.tone(base + 0.13 * wave * calm)
        ocean = mix(ocean, bright, road * smooth(wave + 0.35 * road, 0.05, 1.3) * 0.85)
        ocean = mix(ocean, c.tone(low), smooth(wave, 1.0, 1.9) * 0.25 * calm)
        picture = mix(back(t), ocean, water)
        bob = np.roll(boat(0.5 * SWAY * sin(t)), round(sin(t) * c.height / 110), 0)
        return mix(picture, c.tone(near), bob)

    return at


def aurora(c: Canvas) -> Frame:
    """Curtains of light over a ridge and a lake."""
    back, s, curtains = sky(c, 0.75, (c.aspect / 2, -0.4)), Stencil(c), []
    for hue, gain in ((158, 0.8), (175, 0.6), (320, 0.45)):
        colours = oklch(0.8, 0.19, hue), oklch(0.55, 0.2, hue + 130)
        folds = [(c.pick(0.8, 3.2), c.pick(0, TAU)) for _ in range(4)]
        rays = [(c.pick(9, 34), c.pick(0, TAU)) for _ in range(5)]
        curtains.append((*colours, gain, c.pick(0.4, 0.56), folds, rays))
    land(c, s, ridge(c, 0.6, 0.09, 0.85))
    peaks = s.seen()
    x = c.x[0]

    def above(t: float) -> Array:
        picture = back(t)
        for low, high, gain, foot, folds, rays in curtains:
            swing = sum(np.sin(k * x + p + math.sin(TAU * t + p)) for k, p in folds)
            edge = foot + 0.055 * swing
            ray = sum(np.sin(k * (x + 0.12 * swing) + p + TAU * t) for k, p in rays)
            wax = 0.6 + 0.4 * np.sin(0.9 * x + folds[0][1] + TAU * t)
            power = gain * (0.55 + 0.13 * ray) * wax
            up = edge[None] - c.y
            light = np.where(up > 0, np.exp(-up / 0.17), np.exp(up / 0.012)) * power[None]
            picture += light[..., None] * mix(low, high, smooth(up, 0.02, 0.4))
        return mix(picture, c.tone(0.03), peaks(0.4 * SWAY * sin(t)))

    return _mirrored(c, above, 0.7, 0.62)


# ------------------------------------------------------------------ scenes without one


def fire(c: Canvas) -> Frame:
    """Flames over logs, sparks above."""
    one, two = clouds(c, 1.9, 1.5, 0.012), clouds(c, 1.7, 1.2, 0.012)
    side = clouds(c, 2.4, 1.0, 0.02)
    fast = c.turns(0.8)
    mid, up = c.aspect / 2, np.clip((0.84 - c.y) / 0.75, -0.2, 1.2)
    v = np.linspace(0, 1, 256)
    flame = oklch(0.1 + 0.87 * v**0.8, 0.19 * np.sin(np.pi * (v * 0.85 + 0.1)), 18 + 78 * v)
    night = c.tone(0.1 * np.exp(-(((c.x - mid) / 0.9) ** 2)) * (1 - 0.5 * c.y))
    s = Stencil(c)
    for slope in (-1, 1):
        for along in np.linspace(-0.3, 0.3, 60):
            s.blob(mid + along, 0.84 + 0.12 * slope * along, 0.024, 0.024)
    logs = s.seen()(0)

    def at(t: float) -> Array:
        wind = scrolled(side, fast * t) * 0.07 * np.clip(up, 0, 1)
        apart = np.abs(c.x - mid + wind) / (0.4 - 0.22 * np.clip(up, 0, 1))
        lick = 0.6 * scrolled(one, fast * t) + 0.4 * scrolled(two, 2 * fast * t)
        heat = 1.12 - 1.15 * up - 0.85 * apart**1.6 + 0.33 * lick * (0.35 + up)
        heat *= smooth(up, -0.06, 0.05)
        pulse = 0.9 + 0.1 * sin(fast * t)
        around = 0.35 * pulse * np.exp(-((c.x - mid) ** 2 + 1.6 * (c.y - 0.62) ** 2) / 0.16)
        picture = night + around[..., None] * flame[150]
        cover = smooth(heat, 0.02, 0.35)
        picture = mix(picture, flame[(np.clip(heat * 0.95, 0, 1) * 255).astype(np.intp)], cover)
        return mix(picture, flame[int(26 + 14 * pulse)] * 0.8, logs)

    return at


def cosmos(c: Canvas) -> Frame:
    """A planet with its ring in a nebula."""
    one, two, points = changing(c, 2.6), changing(c, 2.2), stars(c, 90)
    px, py, r = c.aspect * c.pick(0.3, 0.7), c.pick(0.38, 0.48), c.pick(0.17, 0.25)
    tilt, flat = c.pick(-0.5, 0.5), c.pick(0.22, 0.34)
    dx, dy, lean, rise = c.x - px, c.y - py, math.cos(tilt), math.sin(tilt)
    u, w = (dx * lean + dy * rise) / r, (dy * lean - dx * rise) / r
    body = disc(c, px, py, r)
    depth = np.sqrt(np.clip(1 - u * u - w * w, 0, 1))
    lit = np.clip(0.12 + 1.05 * (-0.55 * u - 0.45 * w + 0.7 * depth), 0.03, 1)
    bands = [(c.pick(3, 13), c.pick(0, TAU)) for _ in range(4)]
    round_ = np.arcsin(np.clip(u / np.sqrt(np.clip(1 - w * w, 1e-3, 1)), -1, 1))
    far = np.hypot(u, w / flat)
    ring = smooth(far, 1.32, 1.38) * (1 - smooth(far, 2.05, 2.15)) * (0.55 + 0.3 * np.sin(far * 31))
    ring = ring * (1 - 0.75 * ((u > 0.1) & (np.abs(w) < 1) & (w < 0)))
    ring *= np.where(w < 0, 1 - body, 1) * (c.rng.random() < 0.8)
    rim = np.exp(-np.abs(np.hypot(u, w) - 1) * 9) * np.clip(-0.6 * u - 0.5 * w, 0, 1) * 0.5

    def at(t: float) -> Array:
        cloud = one(t)
        picture = c.tone(0.07 + 0.2 * smooth(cloud, -1, 2.5) + 0.4 * smooth(two(t) + cloud, 0, 4))
        swirl = 0.09 * np.sin(3 * round_ + 6 * w - TAU * t)
        swirl += 0.05 * np.sin(6 * round_ - 2 * TAU * t)
        band = sum(np.sin(b * (w + swirl) + p) for b, p in bands) / 4
        picture = picture + points(t)[..., None]
        picture = mix(picture, c.tone(0.66 + 0.3 * band) * lit[..., None], body)
        picture += rim[..., None] * c.accent
        return mix(picture, c.tone(0.86), ring * 0.8)

    return at


def stream(c: Canvas) -> Frame:
    """Threads of light carried by a slow wind."""
    number, steps, tail = 900, 120, 36
    hill = clouds(c, 3.6, 0.8, 0.05)
    down, right = np.gradient(hill)  # along the contours: threads neither meet nor end
    speed = 0.0052 / (np.hypot(down, right) + 0.15 * np.hypot(down, right).mean())
    flow_x, flow_y = down * speed, -right * speed
    x = c.rng.uniform(-0.15, c.aspect + 0.15, number)
    y = c.rng.uniform(-0.1, 1.1, number)
    path = np.empty((2, steps, number))
    for i in range(steps):
        path[:, i] = x, y
        here = (y * c.height).astype(int) % c.height, (x * c.height).astype(int) % c.width
        x, y = x + flow_x[here], y + flow_y[here]
    born, bright = c.rng.uniform(0, 1, number), c.rng.uniform(0.25, 1, number) ** 2
    pace = c.rng.integers(1, c.turns(0.5) + 1, number)
    group = c.rng.integers(0, 3, number)
    colours = [c.tone(0.62), c.tone(0.85), c.accent]
    back = c.tone(0.05 + 0.16 * smooth(c.y + 0.15 * clouds(c, 3), -0.1, 1.3))
    fade = np.linspace(0.15, 1, tail)[:, None] ** 1.5

    def at(t: float) -> Array:
        age = (born + pace * t) % 1
        head = (age * (steps - tail - 1))[None] + np.arange(tail)[:, None]
        i = head.astype(np.intp)
        part, who = head - i, np.arange(number)[None]
        px = path[0, i, who] * (1 - part) + path[0, i + 1, who] * part
        py = path[1, i, who] * (1 - part) + path[1, i + 1, who] * part
        power = fade * bright * np.sin(np.pi * age) * 0.8
        picture = back.copy()
        for k, colour in enumerate(colours):
            mine = group == k
            lit = dots(c, px[:, mine].ravel(), py[:, mine].ravel(), power[:, mine].ravel())
            picture += (1 - np.exp(-1.5 * lit))[..., None] * colour
        return picture

    return at


def lights(c: Canvas) -> Frame:
    """Discs of coloured light out of focus."""
    n = 34
    x, y = c.rng.uniform(-0.05, c.aspect + 0.05, n), c.rng.normal(0.48, 0.24, n)
    r = np.sort(c.rng.uniform(0.025, 0.15, n) ** 1.1)[::-1]
    phase, reach = c.rng.uniform(0, 1, (2, n)), c.rng.uniform(0.01, 0.06, (2, n))
    power = c.rng.uniform(0.1, 0.34, n) * (1.15 - 3.2 * r)
    hue = [mix(c.tone(c.pick(0.5, 0.95)), c.accent, c.rng.random() < 0.3) for _ in range(n)]
    back = c.tone(0.06 + 0.24 * smooth(clouds(c, 3, 0.7) * 0.3 + 1 - c.y, 0, 1.6))
    soft = np.clip(r * 0.1, 1.2 / c.height, 1)

    def at(t: float) -> Array:
        picture = back.copy()
        for i in range(n):
            cx = x[i] + reach[0, i] * np.sin(TAU * (t + phase[0, i]))
            cy = y[i] + reach[1, i] * np.cos(TAU * (t + phase[0, i]))
            where, far = spot(c, cx, cy, r[i] + soft[i])
            inside = np.clip((r[i] - far) / soft[i] + 0.5, 0, 1)
            edge = 0.7 + 0.75 * smooth(far / r[i], 0.72, 1.0)
            beat = power[i] * (0.75 + 0.25 * np.sin(TAU * (t + phase[1, i])))
            picture[where] += (inside * edge * beat)[..., None] * hue[i] * 1.4
        return picture

    return at


def paper(c: Canvas) -> Frame:
    """Sheets of cut paper, each with its shadow on the one below."""
    ground = changing(c, 3.4, 0.8, 0.03)
    levels = np.linspace(-1.5, 1.6, 8).tolist()
    down = c.rng.random() < 0.5
    tones = np.linspace(0.95, 0.12, 9) if down else np.linspace(0.12, 0.95, 9)
    sheets = [c.tone(v) for v in tones]
    if c.rng.random() < 0.7:
        sheets[int(c.rng.integers(3, 8))] = c.accent
    lift = max(1, round(0.022 * c.height))
    grain = (clouds(c, 0.6) * 0.008)[..., None]
    steps = np.linspace(0, 8, 257)  # 32 shades from each sheet to the next: its smooth edge
    edges = np.stack([np.interp(steps, np.arange(9), v) for v in np.array(sheets).T], axis=-1)
    edges = edges.astype(np.float32)

    def at(t: float) -> Array:
        v = ground(t)
        steep = np.hypot(*np.gradient(v)) + 1e-3
        above = np.roll(v, (lift, lift // 2), (0, 1))
        shade, count = np.ones_like(v), np.zeros_like(v)
        for level in levels:
            cover = np.clip((v - level) / steep + 0.5, 0, 1)
            shade *= 1 - 0.42 * smooth(above, level - 0.16, level + 0.2)
            shade += (1 - shade) * cover
            count += cover
        return edges[(count * 32).astype(np.intp)] * shade[..., None] + grain

    return at


_ALL = (hills, lights, sea, paper, city, stream, forest, snow, cosmos, aurora, fire)
SCENES: dict[str, Callable[[Canvas], Frame]] = {scene.__name__: scene for scene in _ALL}


# ------------------------------------------------------------------ words and seed to a painter


def _named(table: Mapping[K, str], words: list[str]) -> K | None:
    """The key of `table` whose list holds the earliest of `words`, or None."""
    for word in words:
        for key, known in table.items():
            if word in known.split():
                return key
    return None


def _canvas(prompt: str, seed: int, width: int, height: int, seconds: float) -> tuple[str, Canvas]:
    words = re.findall(r"\w+", prompt.casefold())
    key = hashlib.sha256(f"{seed}\n{prompt}".encode("utf-8", "surrogatepass")).digest()
    text = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).digest()
    rng = np.random.default_rng(int.from_bytes(key, "big"))
    weather, animal = _named(WEATHER, words), next((w for w in words if w in COATS), None)
    if animal == "cat" and "black" in words:
        animal = "black cat"
    place = _named(PLACES, [w for w in words if w not in COLOURS])
    if place is None and animal:
        place = HOMES[int(rng.integers(len(HOMES)))]
    if place is None:  # neighbouring seeds of one prompt get different scenes
        place = list(SCENES)[(int.from_bytes(text[:4], "big") + seed) % len(SCENES)]
    if weather is None and place in ("snow", "fire"):
        weather = {"snow": "snow", "fire": "embers"}[place]
    if weather is None and place == "forest" and rng.random() < 0.6:
        weather = "fireflies"
    chance: tuple[Light, ...] = ("night", "dusk", "dusk", "day")
    light = _named(LIGHTS, words) or chance[int(rng.integers(4))]
    if place in ("aurora", "fire") or (place == "city" and light == "day"):
        light = "night"
    pairs = HOME_HUES.get(place, HUES)
    shadow, bright = map(float, pairs[int(rng.integers(len(pairs)))])
    asked = [float(COLOURS[w]) for w in words if w in COLOURS][:2]
    if len(asked) == 2:
        shadow, bright = asked
    elif asked and not (animal and place == "snow"):
        first, turn = asked[0], float(rng.choice([-1, 1]))
        warm = 30 < first < 115  # a warm colour's shadows are redder, never greener
        shadow, bright = (-45, 5) if warm else (-15 * turn, 30 * turn)
        shadow, bright = first + shadow, first + bright
    jitter = float(rng.uniform(-10, 10))
    chroma = 0.05 if {"white", "grey", "gray", "black"} & set(words) and not asked else 0.15
    accent = oklch(0.8, min(0.15, chroma * 1.2), bright + float(rng.choice([-60, 40, 150, 180])))
    ramp = gradient(shadow + jitter, bright + jitter, chroma)
    y, x = (np.arange(n, dtype=np.float32) + 0.5 for n in (height, width))
    grid = x[None] / height, y[:, None] / height
    return place, Canvas(*grid, seconds, rng, ramp, accent, light, weather, animal)


def painter(
    prompt: str, seed: int, *, width: int, height: int, seconds: float
) -> Callable[[float], Image.Image]:
    """A function from a moment in [0, 1) to the picture of that moment.

    The same arguments give the same pictures. `seconds` sets how often things may turn in
    one loop, so that a long clip is not a slow one.
    """
    place, c = _canvas(prompt, seed, width, height, seconds)
    scene, weather, lake = SCENES[place](c), falling(c), place in ("city", "aurora")
    pet = creature(c, size=0.38 if lake else 0.42, perch=lake)
    corner = np.hypot((c.x - c.aspect / 2) / c.aspect, c.y - 0.5)
    vignette = (1.03 - 0.34 * smooth(corner, 0.25, 0.85))[..., None]
    grain = c.rng.uniform(-0.6, 0.6, (height, width, 1)).astype(np.float32) / 255  # no banding

    def at(t: float) -> Image.Image:
        picture = scene(t)
        if place in HOMES:
            picture = pet(picture, t)
        weather(picture, t)
        picture = np.clip(picture * vignette + grain, 0, 1)
        return Image.fromarray((picture * 255 + 0.5).astype(np.uint8), "RGB")

    return at
