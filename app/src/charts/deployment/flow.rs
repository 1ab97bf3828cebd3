//! Draws the dataflow of a placement: a box per model, and the shares of requests between them.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::super::drawing::{Area, Drawn, colour, palette};
use super::{BOX, Deployment, Edge, MARGIN, SKIP, WIDTH, fitting, places, words};

/// Returns the left and right edge of every model's box.
fn boxes(count: usize) -> Vec<(i32, i32)> {
    let room = WIDTH - 2 * MARGIN;
    let count = places(count.max(1));
    let wide = (room * 2 / 3 / count).min(150);
    let between = (room - count * wide) / (count - 1).max(1);
    let place = |number: i32| {
        let left = MARGIN + number * (wide + between);
        (left, left + wide)
    };
    (0..count).map(place).collect()
}

pub(super) fn draw(root: &Area<'_>, deployment: &Deployment, flow: i32) -> Drawn {
    let boxes = boxes(deployment.models.len());
    for (number, (model, (left, right))) in deployment.models.iter().zip(&boxes).enumerate() {
        let corners = [(*left, flow), (*right, flow + BOX)];
        root.draw(&Rectangle::new(corners, colour(number).filled()))?;
        let middle = i32::midpoint(*left, *right);
        let size = fitting(&model.name, right - left, 14);
        words(
            root,
            &model.name,
            (middle, flow + 5),
            size,
            palette::GROUND,
            HPos::Center,
        )?;
        for (line, says) in (0..).zip(&model.says) {
            let at = (middle, flow + 24 + line * 14);
            let size = fitting(says, right - left, 11);
            words(root, says, at, size, palette::GROUND, HPos::Center)?;
        }
    }
    draw_edges(root, &deployment.edges, &boxes, flow)
}

/// Draws the edges between the models in the colour of their source. Skip connections are drawn above.
fn draw_edges(root: &Area<'_>, edges: &[Edge], boxes: &[(i32, i32)], flow: i32) -> Drawn {
    let mut above = flow - 12;
    let mut edges: Vec<&Edge> = edges.iter().collect();
    edges.sort_by_key(|edge| (edge.to.abs_diff(edge.from), edge.from));
    for edge in edges {
        let (Some(from), Some(to)) = (boxes.get(edge.from), boxes.get(edge.to)) else {
            continue;
        };
        let ink = colour(edge.from);
        if edge.is_skip() {
            // Edges with the same source or target are drawn a little apart.
            let (start, end) = (from.1 - 10, to.0 + 8 + 6 * places(edge.from));
            arrow(
                root,
                &[(start, flow), (start, above), (end, above), (end, flow)],
                ink,
            )?;
            let at = (i32::midpoint(start, end), above - 14);
            words(root, &edge.says, at, 12, ink, HPos::Center)?;
            above -= SKIP;
        } else {
            arrow(root, &[(from.1, flow + BOX / 2), (to.0, flow + BOX / 2)], ink)?;
            let at = (i32::midpoint(from.1, to.0), flow + BOX / 2 - 16);
            let size = fitting(&edge.says, to.0 - from.1, 12);
            words(root, &edge.says, at, size, ink, HPos::Center)?;
        }
    }
    Ok(())
}

/// Draws a line with an arrowhead at its end, pointing right or down.
fn arrow(root: &Area<'_>, points: &[(i32, i32)], ink: RGBColor) -> Drawn {
    root.draw(&PathElement::new(points.to_vec(), ink))?;
    if let [.., before, (x, y)] = points {
        let head = if before.1 == *y {
            vec![(*x, *y), (x - 6, y - 3), (x - 6, y + 3)]
        } else {
            vec![(*x, *y), (x - 3, y - 6), (x + 3, y - 6)]
        };
        root.draw(&Polygon::new(head, ink.filled()))?;
    }
    Ok(())
}
