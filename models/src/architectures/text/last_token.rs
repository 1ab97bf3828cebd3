//! End of a token sequence, for encoders that read its last token.

use super::Tokens;

/// Rule for the end of a token sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::architectures) enum TextEnd {
    /// The last given token.
    #[default]
    AsGiven,
    /// The first token with this id, else the first token.
    First(i64),
    /// The first of the tokens with the largest id.
    Largest,
    /// Texts are padded to the context with this token, which is not masked; token ids end at the last given token.
    Padded(i64),
}

impl TextEnd {
    /// Truncates a sequence after its end. Attention is causal, so this does not change the result.
    pub(in crate::architectures) fn shorten(self, tokens: &mut Tokens) {
        let place = |id: i64| tokens.ids.iter().position(|own| *own == id);
        let last = match self {
            Self::AsGiven | Self::Padded(_) => return,
            Self::First(id) => place(id),
            Self::Largest => tokens.ids.iter().max().and_then(|id| place(*id)),
        };
        let length = last.unwrap_or_default() + 1;
        tokens.ids.truncate(length);
        tokens.types.truncate(length);
        tokens.mask.truncate(length);
        if !tokens.mask.contains(&true) {
            // A sequence must have a visible token.
            tokens.mask.fill(true);
        }
    }

    /// Pads the tokens of a text to the context; `padding` is the tokenizer's padding id.
    pub(in crate::architectures) fn fill(self, tokens: &mut Tokens, context: usize, padding: Option<i64>) {
        if let Self::Padded(own) = self {
            tokens.ids.resize(context, padding.unwrap_or(own));
            tokens.types.resize(context, 0);
            tokens.mask.resize(context, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: &[i64]) -> Tokens {
        Tokens {
            ids: ids.to_vec(),
            types: vec![0; ids.len()],
            mask: vec![true; ids.len()],
            segments: Vec::new(),
            second: None,
            labelled: None,
        }
    }

    #[test]
    fn sequences_end_where_their_encoder_reads_them() {
        let shortened = |end: TextEnd| {
            let mut tokens = tokens(&[4, 9, 2, 9, 9]);
            end.shorten(&mut tokens);
            tokens.ids
        };
        assert_eq!(shortened(TextEnd::AsGiven), [4, 9, 2, 9, 9]);
        assert_eq!(shortened(TextEnd::Largest), [4, 9]);
        assert_eq!(shortened(TextEnd::First(2)), [4, 9, 2]);
        assert_eq!(shortened(TextEnd::First(7)), [4]);
        let filled = |padding| {
            let mut tokens = tokens(&[4, 9]);
            TextEnd::Padded(1).fill(&mut tokens, 4, padding);
            tokens.ids
        };
        assert_eq!(filled(None), [4, 9, 1, 1]);
        assert_eq!(filled(Some(0)), [4, 9, 0, 0]);
    }
}
