//! Recipes as `tidemill image build` writes them: what the wire calls ImageUse, and more that is not needed here.

use std::path::Path;

use tidemill_wire::ImageUse;

use crate::ImageError;

/// A recipe is never longer; the same bound as in src/tidemill/image/recipe.py.
const RECIPE_BYTES_MAX: u64 = 256 << 20;

/// Reads a recipe. Paths of pieces become absolute: in the file they are relative to its directory.
pub(super) fn read(path: &Path) -> Result<ImageUse, ImageError> {
    let wrong = |what: String| ImageError::Recipe {
        path: path.to_owned(),
        what,
    };
    let whole = std::fs::canonicalize(path).map_err(ImageError::file("find recipe", path))?;
    let length = std::fs::metadata(&whole)
        .map_err(ImageError::file("stat", path))?
        .len();
    if length > RECIPE_BYTES_MAX {
        return Err(wrong(format!("{length} bytes are too many for a recipe")));
    }
    let content = std::fs::read(&whole).map_err(ImageError::file("read recipe", path))?;
    let mut image: ImageUse = serde_json::from_slice(&content)
        .map_err(|error| wrong(format!("is not a recipe of an image: {error}")))?;
    check(&image).map_err(wrong)?;
    let store = whole.parent().unwrap_or(Path::new("/"));
    for piece in &mut image.file.pieces {
        piece.path = store.join(&piece.path).to_string_lossy().into_owned();
    }
    Ok(image)
}

fn check(image: &ImageUse) -> Result<(), String> {
    let digest = &image.file.sha256;
    if !is_digest(digest) {
        return Err(format!("`{digest}` is not a SHA-256"));
    }
    let told = image
        .file
        .pieces
        .iter()
        .try_fold(0_u64, |sum, piece| sum.checked_add(piece.length));
    if told != Some(image.file.bytes) {
        return Err(format!(
            "its pieces do not make the {} bytes of the image",
            image.file.bytes
        ));
    }
    if let Some(piece) = image.file.pieces.iter().find(|piece| !is_inside(&piece.path)) {
        return Err(format!("`{}` is not in its store", piece.path));
    }
    for area in &image.areas {
        let plain = Path::new(area)
            .components()
            .all(|part| !matches!(part, std::path::Component::ParentDir));
        if !area.starts_with('/') || area.trim_matches('/').is_empty() || !plain {
            return Err(format!("area `{area}` is not an absolute path below `/`"));
        }
    }
    Ok(())
}

fn is_digest(text: &str) -> bool {
    let mut bytes = text.bytes();
    text.len() == 64 && bytes.all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Nothing outside of the store.
fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    !path.is_empty() && parts.all(|part| matches!(part, std::path::Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(digest: &str, bytes: u64, area: &str) -> String {
        format!(
            r#"{{"format":1,"name":"x","file":{{"sha256":"{digest}","bytes":{bytes},"pieces":[
               {{"path":"packs/a.pack","offset":0,"length":5}}]}},"areas":["{area}"],"unpacked_bytes":9,"other":1}}"#
        )
    }

    fn read_text(text: &str) -> Result<ImageUse, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        std::fs::write(&path, text).unwrap();
        let place = dir.path().canonicalize().unwrap();
        read(&path).map_err(|error| error.to_string()).inspect(|image| {
            assert_eq!(
                image.file.pieces[0].path,
                place.join("packs/a.pack").to_string_lossy()
            );
        })
    }

    #[test]
    fn pieces_lie_below_the_recipes_directory() {
        assert!(read_text(&recipe(&"a".repeat(64), 5, "/sw")).is_ok());
    }

    #[test]
    fn what_is_wrong_is_quoted() {
        let digest = "a".repeat(64);
        for (text, part) in [
            (recipe("../../x", 5, "/sw"), "`../../x` is not a SHA-256"),
            (recipe(&digest, 6, "/sw"), "6 bytes"),
            (recipe(&digest, 5, "sw"), "`sw`"),
            (recipe(&digest, 5, "/"), "`/`"),
            (recipe(&digest, 5, "/sw/../etc"), ".."),
            ("{".to_owned(), "not a recipe"),
            (
                recipe(&digest, 5, "/sw").replace("packs/", "../packs/"),
                "not in its store",
            ),
            (
                recipe(&digest, 5, "/sw").replace("packs/a.pack", "/etc/shadow"),
                "not in its store",
            ),
        ] {
            let error = read_text(&text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
