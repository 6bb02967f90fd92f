"""The pictures behind the `local` provider: small animated scenes out of words and a seed.

`painter` chooses a palette and a scene and returns a function from a moment of the loop
(0 to 1, where 1 is 0 again) to a frame. Whatever moves, moves by whole turns a loop, so the
last frame leads into the first. Imported only by a worker that renders: loads numpy and Pillow.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from PIL import Image

from .brush import (
    COATS,
    SWAY,
    TAU,
    Array,
    Canvas,
    Frame,
    Light,
    Planes,
    Stencil,
    changing,
    clouds,
    creature,
    disc,
    dots,
    falling,
    gradient,
    land,
    layers,
    mirrored,
    mix,
    oklch,
    ridge,
    scrolled,
    shine,
    sin,
    sky,
    smooth,
    spot,
    stars,
)

__all__ = ["painter"]

K = TypeVar("K", bound=str)

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
WEATHER = {
    "snow": "snow snowy snowfall winter blizzard ice icy frost arctic",
    "petals": "petal petals blossom blossoms cherry spring sakura flower flowers garden",
    "leaves": "leaf leaves autumn fall october",
    "rain": "rain rainy storm monsoon",
    "embers": "ember embers spark sparks lava volcano",
    "fireflies": "firefly fireflies magic fairy enchanted meadow",
}
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


# ------------------------------------------------------------------ scenes with a horizon


def hills(c: Canvas) -> Frame:
    """Ridges one behind the other, from peaks to dunes."""
    rough = c.pick(0.0, 0.9)

    def draw(depth: float) -> Planes:
        s, rise = Stencil(c), 0.15 - 0.08 * depth
        land(c, s, ridge(c, 0.5 + 0.34 * depth, rise, rough * (1 - 0.75 * depth)))
        return [(s, False)]

    return layers(c, draw, 6)


def snow(c: Canvas) -> Frame:
    """Pines on soft white slopes."""

    def draw(depth: float) -> Planes:
        line = ridge(c, 0.56 + 0.28 * depth, 0.07, 0.12)
        trees, slope = Stencil(c), Stencil(c)
        if depth < 1 or c.creature is None:
            for x in c.rng.uniform(-0.1, c.aspect + 0.1, int(26 - 21 * depth)):
                tall = (0.1 + 0.3 * depth) * c.pick(0.7, 1.25)
                trees.pine(x, float(line(np.array(x))) + 0.01, tall)
        land(c, slope, line)
        return [(trees, False), (slope, True)]

    return layers(c, draw, 4)


def forest(c: Canvas) -> Frame:
    """Trunks in the mist, with light between them."""
    leafy = c.weather == "leaves" or c.rng.random() < 0.5

    def draw(depth: float) -> Planes:
        s, line = Stencil(c), ridge(c, 0.72 + 0.14 * depth, 0.03, 0.3)
        for x in np.linspace(-0.1, c.aspect + 0.1, int(22 - 15 * depth)):
            x += c.pick(-0.07, 0.07) * (1 + depth)
            foot = float(line(np.array(x)))
            if not leafy:
                s.pine(x, foot + 0.02, (0.35 + 0.5 * depth) * c.pick(0.75, 1.2))
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

    return layers(c, draw, 5)


def city(c: Canvas) -> Frame:
    """A skyline with its lights on, above still water."""
    back, warm, planes = sky(c, 0.7), oklch(0.86, 0.12, 80), []
    _, low, near, far = c.tones
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

    return mirrored(c, above, 0.74)


def sea(c: Canvas) -> Frame:
    """Waves to the horizon, the sun's or moon's road on them, and a sail."""
    horizon = c.pick(0.42, 0.52)
    orb = (c.aspect * c.pick(0.25, 0.75), horizon - c.pick(0.02, 0.2))
    back = sky(c, horizon, orb)
    _, low, near, far = c.tones
    down = np.clip(c.y - horizon, 1e-4, 1)
    z = 0.12 / (down + 0.025)  # distance over the water
    water = np.clip((c.y - horizon) * c.height, 0, 1)
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

    return mirrored(c, above, 0.7, 0.62)


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
        picture = picture + points(t)
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
            picture += (1 - np.exp(-1.5 * lit)) * colour
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
    if weather is None:
        weather = {"snow": "snow", "fire": "embers"}.get(place)
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
    scene, weather = SCENES[place](c), falling(c)
    pet = creature(c, perch=place in ("city", "aurora"))  # these two end in water
    corner = np.hypot((c.x - c.aspect / 2) / c.aspect, c.y - 0.5)
    vignette = (1.03 - 0.34 * smooth(corner, 0.25, 0.85))[..., None]
    grain = c.rng.uniform(-0.6, 0.6, (height, width, 1)).astype(np.float32) / 255  # no banding

    def at(t: float) -> Image.Image:
        picture = scene(t)
        if place in HOMES:
            pet(picture, t)
        weather(picture, t)
        picture = np.clip(picture * vignette + grain, 0, 1)
        return Image.fromarray((picture * 255 + 0.5).astype(np.uint8), "RGB")

    return at
