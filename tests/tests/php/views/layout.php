<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title><?= Text::safe($title) ?></title>
<link rel="stylesheet" href="/style.css">
<script src="/app.js" defer></script>
</head>
<body>
<h1><img src="/logo.svg" alt=""> <?= Text::safe($title) ?></h1>
<?= $content ?>
</body>
</html>
