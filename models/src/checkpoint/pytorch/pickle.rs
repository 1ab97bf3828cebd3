//! Reads pickles as data. Nothing is imported or called: a call is recorded with its arguments.
//!
//! Source: `pickletools` of Python; the operations that PyTorch writes with the protocols 2 to 4.

use std::collections::HashMap;

/// Maximum number of objects, and of values on the stack. A tensor takes about ten objects.
const MAX_OBJECTS: usize = 4 << 20;
const TOO_LARGE: &str = "it has more than 4,194,304 objects";
const CUT: &str = "it ends early";
const EMPTY: &str = "it uses more values than it has";

/// A value of a pickle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// A number of more than 64 bits.
    Long,
    Float,
    /// An object, by its index in the pickle.
    Object(usize),
}

/// An object of a pickle.
#[derive(Debug, PartialEq)]
pub(super) enum Object {
    Text(String),
    Bytes,
    /// A tuple, a list or a set.
    Sequence(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    /// A class or a function, as `module.name`.
    Global(String),
    /// A call that was not executed, and the items that were set in its result.
    Call {
        callable: Value,
        arguments: Value,
        items: Vec<(Value, Value)>,
    },
    /// Data outside of the pickle, by its identifier.
    Persistent(Value),
}

/// A pickle that was read.
#[derive(Debug)]
pub(super) struct Pickle {
    objects: Vec<Object>,
    pub(super) root: Value,
    /// Size of the pickle, bytes.
    pub(super) bytes: usize,
}

impl Pickle {
    /// Reads the pickle at the beginning of `bytes`.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut machine = Machine {
            bytes,
            at: 0,
            objects: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        let root = machine.run()?;
        Ok(Self {
            objects: machine.objects,
            root,
            bytes: machine.at,
        })
    }

    /// Returns the number of objects.
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns the object of a value; `None` for the other values.
    pub(super) fn object(&self, value: Value) -> Option<&Object> {
        match value {
            Value::Object(index) => self.objects.get(index),
            _ => None,
        }
    }

    /// Returns the text of a value.
    pub(super) fn text(&self, value: Value) -> Option<&str> {
        match self.object(value)? {
            Object::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the elements of a tuple, a list or a set.
    pub(super) fn sequence(&self, value: Value) -> Option<&[Value]> {
        match self.object(value)? {
            Object::Sequence(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the name of a class or function, as `module.name`.
    pub(super) fn global(&self, value: Value) -> Option<&str> {
        match self.object(value)? {
            Object::Global(name) => Some(name),
            _ => None,
        }
    }

    /// Returns the function of a call that was not executed, and its arguments.
    pub(super) fn call(&self, value: Value) -> Option<(&str, &[Value])> {
        match self.object(value)? {
            Object::Call {
                callable, arguments, ..
            } => Some((self.global(*callable)?, self.sequence(*arguments)?)),
            _ => None,
        }
    }

    /// Returns the items of a dictionary, also of an `OrderedDict`.
    pub(super) fn items(&self, value: Value) -> Option<&[(Value, Value)]> {
        match self.object(value)? {
            Object::Dict(items) => Some(items),
            Object::Call { callable, items, .. }
                if self.global(*callable) == Some("collections.OrderedDict") =>
            {
                Some(items)
            }
            _ => None,
        }
    }
}

/// Interpreter of the operations.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    objects: Vec<Object>,
    stack: Vec<Value>,
    /// Stack heights of the open marks.
    marks: Vec<usize>,
    memo: HashMap<u64, Value>,
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Result<Value, String> {
        loop {
            let operation = self.take(1)?.first().copied().unwrap_or_default();
            if operation == b'.' {
                return self.pop();
            }
            self.step(operation)?;
        }
    }

    /// Executes an operation; its code is that of `pickletools`.
    fn step(&mut self, operation: u8) -> Result<(), String> {
        match operation {
            // PROTO, FRAME: the size of a frame does not matter.
            0x80 => self.take(1).map(drop),
            0x95 => self.take(8).map(drop),
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'K' | b'M' | b'J' | 0x8a | b'G' => self.number(operation),
            b'X' | 0x8c | 0x8d | b'U' | b'T' | b'B' | b'C' | 0x8e => self.text(operation),
            b')' | b']' | 0x8f => self.object(Object::Sequence(Vec::new())),
            b'}' => self.object(Object::Dict(Vec::new())),
            b'(' if self.marks.len() < MAX_OBJECTS => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b't' => {
                let values = self.marked()?;
                self.object(Object::Sequence(values))
            }
            0x85..=0x87 => {
                let values = self.popped(usize::from(operation - 0x84))?;
                self.object(Object::Sequence(values))
            }
            b'a' | b'e' | 0x90 | b's' | b'u' => self.add(operation),
            b'q' | b'r' | b'h' | b'j' | 0x94 => self.memo(operation),
            b'c' | 0x93 => self.global(operation),
            // REDUCE, NEWOBJ.
            b'R' | 0x81 => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                self.object(Object::Call {
                    callable,
                    arguments,
                    items: Vec::new(),
                })
            }
            // BUILD, POP: the state of an object is not needed, such as the versions of the modules in a state dictionary.
            b'b' | b'0' => self.pop().map(drop),
            b'Q' => {
                let identifier = self.pop()?;
                self.object(Object::Persistent(identifier))
            }
            other => Err(format!(
                "its operation {other:#04x} at byte {} is not one that PyTorch writes",
                self.at - 1
            )),
        }
    }

    /// `BININT1`, `BININT2`, `BININT`, `LONG1`, `BINFLOAT`.
    fn number(&mut self, operation: u8) -> Result<(), String> {
        let value = match operation {
            b'K' | b'M' => {
                let width = if operation == b'K' { 1 } else { 2 };
                Value::Int(i64::try_from(self.unsigned(width)?).unwrap_or(i64::MAX))
            }
            b'J' => {
                let bytes = self.take(4)?.try_into().unwrap_or_default();
                Value::Int(i32::from_le_bytes(bytes).into())
            }
            0x8a => {
                let length = self.unsigned(1)?;
                let bytes = self.take(length)?;
                let is_negative = bytes.last().is_some_and(|byte| *byte > 0x7f);
                let mut wide = if is_negative { [0xff; 8] } else { [0; 8] };
                match wide.get_mut(..bytes.len()) {
                    Some(slots) => {
                        slots.copy_from_slice(bytes);
                        Value::Int(i64::from_le_bytes(wide))
                    }
                    None => Value::Long,
                }
            }
            _ => {
                self.take(8)?;
                Value::Float
            }
        };
        self.push(value)
    }

    /// `BINUNICODE`, `SHORT_BINUNICODE`, `BINUNICODE8`, `SHORT_BINSTRING`, `BINSTRING`, `BINBYTES`, `SHORT_BINBYTES`, `BINBYTES8`.
    fn text(&mut self, operation: u8) -> Result<(), String> {
        let width = match operation {
            0x8c | b'U' | b'C' => 1,
            0x8d | 0x8e => 8,
            _ => 4,
        };
        let length = self.unsigned(width)?;
        let bytes = self.take(length)?;
        let object = if matches!(operation, b'B' | b'C' | 0x8e) {
            Object::Bytes
        } else {
            let text = std::str::from_utf8(bytes).map_err(|_| "it has a text that is not UTF-8")?;
            Object::Text(text.to_owned())
        };
        self.object(object)
    }

    /// `APPEND`, `APPENDS`, `ADDITEMS`, `SETITEM`, `SETITEMS`.
    fn add(&mut self, operation: u8) -> Result<(), String> {
        let values = match operation {
            b'a' => self.popped(1)?,
            b's' => self.popped(2)?,
            _ => self.marked()?,
        };
        let target = match self.stack.last() {
            Some(Value::Object(index)) => self.objects.get_mut(*index),
            _ => None,
        };
        let is_pairs = matches!(operation, b's' | b'u');
        match target {
            Some(Object::Sequence(all)) if !is_pairs => all.extend(values),
            Some(Object::Dict(items) | Object::Call { items, .. }) if is_pairs => {
                let (pairs, rest) = values.as_chunks();
                if !rest.is_empty() {
                    return Err("it sets a key without a value".into());
                }
                items.extend(pairs.iter().map(|[key, value]| (*key, *value)));
            }
            // A list whose class PyTorch does not know.
            Some(Object::Call { .. }) => {}
            _ => return Err("it adds items to a value that takes none".into()),
        }
        Ok(())
    }

    /// `BINPUT`, `LONG_BINPUT`, `BINGET`, `LONG_BINGET`, `MEMOIZE`.
    fn memo(&mut self, operation: u8) -> Result<(), String> {
        let key = match operation {
            0x94 => self.memo.len() as u64,
            b'q' | b'h' => self.unsigned(1)? as u64,
            _ => self.unsigned(4)? as u64,
        };
        if matches!(operation, b'h' | b'j') {
            let value = self.memo.get(&key).copied();
            return self.push(value.ok_or("it refers to a value that it has not stored")?);
        }
        let value = self.stack.last().copied().ok_or(EMPTY)?;
        self.memo.insert(key, value);
        if self.memo.len() > MAX_OBJECTS {
            return Err(TOO_LARGE.into());
        }
        Ok(())
    }

    /// `GLOBAL`, `STACK_GLOBAL`.
    fn global(&mut self, operation: u8) -> Result<(), String> {
        let name = if operation == b'c' {
            let module = self.line()?;
            format!("{module}.{}", self.line()?)
        } else {
            let parts = self.popped(2)?;
            let mut names = Vec::new();
            for part in parts {
                match part {
                    Value::Object(index) => match self.objects.get(index) {
                        Some(Object::Text(name)) => names.push(name.as_str()),
                        _ => return Err("it imports what is not a name".into()),
                    },
                    _ => return Err("it imports what is not a name".into()),
                }
            }
            names.join(".")
        };
        self.object(Object::Global(name))
    }

    fn line(&mut self) -> Result<String, String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == b'\n').ok_or(CUT)?;
        let line = self.take(length + 1)?;
        let text = line.get(..length).unwrap_or_default();
        String::from_utf8(text.to_vec()).map_err(|_| "it has a name that is not UTF-8".into())
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let taken = self
            .at
            .checked_add(length)
            .and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or(CUT)?;
        self.at += length;
        Ok(taken)
    }

    /// Reads a little-endian number of 1 to 8 bytes.
    fn unsigned(&mut self, width: usize) -> Result<usize, String> {
        let bytes = self.take(width)?;
        let value = bytes
            .iter()
            .rev()
            .fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
        usize::try_from(value).map_err(|_| CUT.into())
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        if self.stack.len() >= MAX_OBJECTS {
            return Err(TOO_LARGE.into());
        }
        self.stack.push(value);
        Ok(())
    }

    fn object(&mut self, object: Object) -> Result<(), String> {
        if self.objects.len() >= MAX_OBJECTS {
            return Err(TOO_LARGE.into());
        }
        self.objects.push(object);
        self.push(Value::Object(self.objects.len() - 1))
    }

    fn pop(&mut self) -> Result<Value, String> {
        let above_mark = self.marks.last().copied().unwrap_or_default();
        if self.stack.len() <= above_mark {
            return Err(EMPTY.into());
        }
        self.stack.pop().ok_or_else(|| EMPTY.into())
    }

    /// Pops values, the deepest first.
    fn popped(&mut self, count: usize) -> Result<Vec<Value>, String> {
        let above_mark = self.marks.last().copied().unwrap_or_default();
        let start = self
            .stack
            .len()
            .checked_sub(count)
            .filter(|start| *start >= above_mark);
        Ok(self.stack.split_off(start.ok_or(EMPTY)?))
    }

    /// Pops the values above the last mark, the deepest first.
    fn marked(&mut self) -> Result<Vec<Value>, String> {
        let start = self.marks.pop().ok_or("it ends a group that it has not begun")?;
        Ok(self.stack.split_off(start.min(self.stack.len())))
    }
}
