//! Fields of messages as bytes: numbers of 8 bytes, texts with their length before them.

/// Bytes that could not be understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Garbled(pub String);

pub(crate) struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    pub fn number(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.number(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub fn maybe(&mut self, value: Option<u64>) -> &mut Self {
        match value {
            None => self.number(0),
            Some(value) => self.number(1).number(value),
        }
    }
}

pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn cut(&mut self, length: usize) -> Result<&'a [u8], Garbled> {
        if length > self.0.len() {
            return Err(Garbled(format!("{length} bytes wanted, {} left", self.0.len())));
        }
        let (head, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(head)
    }

    pub fn number(&mut self) -> Result<u64, Garbled> {
        let mut value = [0; 8];
        value.copy_from_slice(self.cut(8)?);
        Ok(u64::from_le_bytes(value))
    }

    pub fn bytes(&mut self) -> Result<Vec<u8>, Garbled> {
        let length = self.number()?;
        let length = usize::try_from(length).map_err(|_| Garbled(format!("length {length}")))?;
        Ok(self.cut(length)?.to_vec())
    }

    pub fn text(&mut self) -> Result<String, Garbled> {
        String::from_utf8(self.bytes()?).map_err(|error| Garbled(error.to_string()))
    }

    pub fn maybe(&mut self) -> Result<Option<u64>, Garbled> {
        Ok(if self.number()? == 0 {
            None
        } else {
            Some(self.number()?)
        })
    }
}
