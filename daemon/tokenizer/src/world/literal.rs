//! Literals of Python as `repr` writes them: `'text'` or `b'bytes'`, in either kind of quotes.

/// Adds the bytes that a literal stands for.
///
/// # Errors
/// When it is none.
pub(super) fn push(literal: &str, out: &mut Vec<u8>) -> Result<(), String> {
    let (is_bytes, quoted) = match literal.strip_prefix('b') {
        Some(quoted) => (true, quoted),
        None => (false, literal),
    };
    let inside = ['\'', '"'].into_iter().find_map(|quote| {
        let inside = quoted.strip_prefix(quote)?.strip_suffix(quote)?;
        Some((quote, inside))
    });
    let (quote, inside) = inside.ok_or("the token is in no quotes")?;
    let mut rest = inside.chars();
    while let Some(character) = rest.next() {
        match character {
            '\\' => escaped(&mut rest, is_bytes, out)?,
            // It would end the literal here.
            _ if character == quote => return Err("the token has a quote in quotes".to_owned()),
            _ if is_bytes && !character.is_ascii() => {
                return Err(format!("the bytes have the character {character:?}"));
            }
            _ => out.extend(character.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    Ok(())
}

/// Adds what stands behind a backslash.
fn escaped(
    rest: &mut std::str::Chars<'_>,
    is_bytes: bool,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let kind = rest.next().ok_or("the token ends in a backslash")?;
    let byte = match kind {
        '\\' | '\'' | '"' => kind as u8,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'x' | 'u' | 'U' => {
            let digits = match kind {
                'x' => 2,
                'u' if !is_bytes => 4,
                'U' if !is_bytes => 8,
                _ => return Err(format!("the bytes have the escape \\{kind}")),
            };
            let code = hexadecimal(rest, digits).ok_or("the token has a wrong escape")?;
            if is_bytes {
                // Two digits fit.
                out.push(code as u8);
                return Ok(());
            }
            let character = char::from_u32(code).ok_or("the token has a wrong escape")?;
            out.extend(character.encode_utf8(&mut [0; 4]).bytes());
            return Ok(());
        }
        _ => return Err(format!("the token has the escape \\{kind}")),
    };
    out.push(byte);
    Ok(())
}

fn hexadecimal(rest: &mut std::str::Chars<'_>, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0u32, |code, _| {
        let digit = rest.next()?.to_digit(16)?;
        // Eight digits fit.
        Some(code << 4 | digit)
    })
}
