//! Images as they might have been written: moved, turned, resized, slanted and noisy.

use rand::Rng;

/// How far an image may be changed. Each change is drawn evenly from minus to plus its limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Augmentation {
    /// Along each axis, pixels.
    pub shift: f32,
    /// Around the middle, degrees.
    pub turn: f32,
    /// Of each side, as a share of it.
    pub scale: f32,
    /// Sideways per row, pixels.
    pub slant: f32,
    /// Of each pixel, of a full intensity of 1.
    pub noise: f32,
}

impl Augmentation {
    /// Appends a changed copy of an image of `width` pixels per row to `out`.
    pub(crate) fn apply(&self, image: &[f32], width: usize, rng: &mut impl Rng, out: &mut Vec<f32>) {
        let mut within = |limit: f32| rng.random_range(-1.0..=1.0) * limit;
        let height = image.len() / width;
        let middle = ((width as f32 - 1.0) / 2.0, (height as f32 - 1.0) / 2.0);
        let shift = (within(self.shift), within(self.shift));
        let scale = (1.0 + within(self.scale), 1.0 + within(self.scale));
        let (sin, cos) = within(self.turn).to_radians().sin_cos();
        let slant = within(self.slant);
        for y in 0..height {
            for x in 0..width {
                // Backwards: where in the original does this pixel come from?
                let (dx, dy) = (x as f32 - middle.0 - shift.0, y as f32 - middle.1 - shift.1);
                let (turned_x, turned_y) = (cos * dx + sin * dy, cos * dy - sin * dx);
                let from = (
                    (turned_x + slant * turned_y) / scale.0 + middle.0,
                    turned_y / scale.1 + middle.1,
                );
                let noisy = sample(image, width, from) + within(self.noise);
                out.push(noisy.clamp(0.0, 1.0));
            }
        }
    }
}

/// The intensity between four pixels, by distance; outside the image it is 0.
fn sample(image: &[f32], width: usize, (x, y): (f32, f32)) -> f32 {
    let pixel = |x: f32, y: f32| {
        let inside = x >= 0.0 && y >= 0.0 && (x as usize) < width;
        let pixel = if inside {
            image.get(y as usize * width + x as usize)
        } else {
            None
        };
        pixel.copied().unwrap_or(0.0)
    };
    let (left, top) = (x.floor(), y.floor());
    let (right, down) = (x - left, y - top);
    let row = |y: f32| pixel(left, y) * (1.0 - right) + pixel(left + 1.0, y) * right;
    row(top) * (1.0 - down) + row(top + 1.0) * down
}
