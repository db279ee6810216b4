//! Finding a mutant's place: a function by its name, and a text within it.

use std::ops::Range;

use anyhow::{Context as _, Result, bail, ensure};
use syn::{spanned::Spanned as _, visit::Visit};

#[cfg(test)]
mod tests;

/// A file of Rust, and where its functions are.
pub(super) struct Source {
    text: String,
    /// With what encloses them, and their bytes from `fn` to the closing brace.
    functions: Vec<(String, Range<usize>)>,
}

impl Source {
    /// # Errors
    /// Where the text is no Rust.
    pub(super) fn parse(text: String) -> Result<Self> {
        let file = syn::parse_file(&text).context("reading it as Rust")?;
        let mut functions = Functions::default();
        functions.visit_file(&file);
        let functions = functions.found.into_iter().map(|(path, range)| (path.join("::"), range)).collect();
        Ok(Self { text, functions })
    }

    /// The text with the one place of `search` within the function `name` replaced.
    ///
    /// `name`: a function's name, with as much of what encloses it before it as makes it the only one of the file:
    /// `sync`, `SyncState::sync`, `tests::sync`.
    ///
    /// # Errors
    /// Where the function is not there exactly once, or the text is not in it exactly once.
    pub(super) fn replaced(&self, name: &str, search: &str, replace: &str) -> Result<String> {
        ensure!(!search.is_empty(), "there is nothing to search for");
        ensure!(search != replace, "the replacement changes nothing");
        let function = self.function(name)?;
        let body = &self.text[function.clone()];
        let mut places = body.match_indices(search);
        let (place, _) = places.next().with_context(|| format!("the function {name} does not hold {search:?}"))?;
        ensure!(places.next().is_none(), "the function {name} holds {search:?} more than once");
        let (before, rest) = self.text.split_at(function.start + place);
        Ok(format!("{before}{replace}{}", &rest[search.len()..]))
    }

    fn function(&self, name: &str) -> Result<Range<usize>> {
        let behind_others = format!("::{name}");
        let is_wanted = |path: &str| path == name || path.ends_with(&behind_others);
        let mut found = self.functions.iter().filter(|(path, _)| is_wanted(path));
        let Some((_, range)) = found.next() else { bail!("there is no function {name}") };
        if let Some((path, _)) = found.next() {
            bail!("there is more than one function {name}, {path} among them: say which type or module");
        }
        Ok(range.clone())
    }
}

#[derive(Default)]
struct Functions {
    /// Modules, types and functions around what is visited.
    around: Vec<String>,
    found: Vec<(Vec<String>, Range<usize>)>,
}

impl Functions {
    fn within(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.around.push(name);
        visit(self);
        self.around.pop();
    }

    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        // Not the attributes: documentation is among them.
        let range = signature.span().byte_range().start..body.span().byte_range().end;
        self.within(signature.ident.to_string(), |this| {
            this.found.push((this.around.clone(), range));
            this.visit_block(body);
        });
    }
}

impl Visit<'_> for Functions {
    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        self.within(module.ident.to_string(), |this| syn::visit::visit_item_mod(this, module));
    }

    fn visit_item_impl(&mut self, block: &syn::ItemImpl) {
        let name = match &*block.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.within(name.unwrap_or_default(), |this| syn::visit::visit_item_impl(this, block));
    }

    fn visit_item_trait(&mut self, declaration: &syn::ItemTrait) {
        self.within(declaration.ident.to_string(), |this| syn::visit::visit_item_trait(this, declaration));
    }

    fn visit_item_fn(&mut self, function: &syn::ItemFn) {
        self.function(&function.sig, &function.block);
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        self.function(&function.sig, &function.block);
    }

    fn visit_trait_item_fn(&mut self, function: &syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.function(&function.sig, body);
        }
    }
}
