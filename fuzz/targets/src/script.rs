//! Reads the input of a target as a list of decisions, so that a mutation of the input is another list of decisions.

/// What is left of the input.
#[derive(Debug)]
pub struct Script<'a> {
    left: &'a [u8],
}

impl<'a> Script<'a> {
    /// All of an input.
    pub fn new(input: &'a [u8]) -> Self {
        Self { left: input }
    }

    /// Whether every decision was read; the ones after that are all 0.
    pub fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        let Some((byte, left)) = self.left.split_first() else {
            return 0;
        };
        self.left = left;
        *byte
    }

    /// A number of so many bytes, big-endian.
    pub fn number(&mut self, bytes: u32) -> u64 {
        (0..bytes).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// A choice among `many`; 0 where there are none.
    pub fn below(&mut self, many: usize) -> usize {
        let number = self.number(if many > 256 { 2 } else { 1 });
        number as usize % many.max(1)
    }

    /// One of a list that is not empty.
    pub fn one_of<'b, T>(&mut self, list: &'b [T]) -> &'b T {
        list.get(self.below(list.len())).expect("the list is not empty")
    }
}
