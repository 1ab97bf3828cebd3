//! The terminal: raw mode, keys and drawing. Dropping it leaves the terminal as it was.

use std::io::Stdout;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::screen::{self, Key, Place};
use super::view::View;

/// Longest wait for a key, so that the thread that reads them ends with the terminal.
const WAIT: Duration = Duration::from_millis(100);

/// An open terminal.
pub(super) struct Terminal {
    screen: ratatui::Terminal<CrosstermBackend<Stdout>>,
    keys: UnboundedReceiver<Key>,
    closed: Arc<AtomicBool>,
    place: Place,
}

impl Terminal {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// When it cannot be switched to raw mode.
    pub(super) fn open() -> anyhow::Result<Self> {
        let screen =
            ratatui::try_init().context("the terminal cannot be used; `--plain` prints tables instead")?;
        let (sender, keys) = unbounded_channel();
        let closed = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&closed);
        thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let read = match event::poll(WAIT) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                // Without its terminal the program has nothing to show.
                let key = read.map_or(Some(Key::Leave), |event| key_of(&event));
                if key.is_some_and(|key| sender.send(key).is_err() || key == Key::Leave) {
                    return;
                }
            }
        });
        Ok(Self {
            screen,
            keys,
            closed,
            place: Place::default(),
        })
    }

    /// The next key.
    pub(super) async fn key(&mut self) -> Option<Key> {
        self.keys.recv().await
    }

    /// Moves to another place.
    pub(super) fn press(&mut self, key: Key) {
        self.place.press(key);
    }

    /// Draws the app.
    ///
    /// # Errors
    /// When the terminal cannot be written.
    pub(super) fn draw(&mut self, view: &View) -> anyhow::Result<()> {
        let place = &mut self.place;
        self.screen.draw(|frame| screen::draw(frame, view, place))?;
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        ratatui::restore();
    }
}

/// Reads an event of the terminal; `None` if it means nothing here.
fn key_of(event: &Event) -> Option<Key> {
    let Event::Key(key) = event else {
        return matches!(event, Event::Resize(..)).then_some(Key::Redraw);
    };
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c' | 'd') if control => Some(Key::Leave),
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Leave),
        KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => Some(Key::NextPage),
        KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => Some(Key::PreviousPage),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Scroll(1)),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Scroll(-1)),
        KeyCode::PageDown | KeyCode::Char(' ') => Some(Key::Scroll(20)),
        KeyCode::PageUp => Some(Key::Scroll(-20)),
        KeyCode::Home => Some(Key::Scroll(isize::MIN)),
        KeyCode::End => Some(Key::Scroll(isize::MAX)),
        KeyCode::Char(digit) => {
            let page = digit.to_digit(10)?.checked_sub(1)?;
            Some(Key::Page(page as usize))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn keys_mean_what_the_help_says() {
        let of = |code, modifiers| key_of(&Event::Key(KeyEvent::new(code, modifiers)));
        let none = KeyModifiers::NONE;
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Leave));
        assert_eq!(of(KeyCode::Char('c'), none), None);
        assert_eq!(of(KeyCode::Char('q'), none), Some(Key::Leave));
        assert_eq!(of(KeyCode::Tab, none), Some(Key::NextPage));
        assert_eq!(of(KeyCode::Char('2'), none), Some(Key::Page(1)));
        assert_eq!(of(KeyCode::Char('0'), none), None);
        assert_eq!(key_of(&Event::Resize(80, 24)), Some(Key::Redraw));
    }
}
